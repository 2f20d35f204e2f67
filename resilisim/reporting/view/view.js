"use strict";
// Pages of runs that are being played are asked for again every two seconds and replace themselves, unless somebody is
// writing in them; where two episodes are shown, keys lead to the others.
(() => {
  const PAUSE = 2000;
  const shown = () => document.getElementById("shown");

  const isBusy = () => {
    const node = document.activeElement;
    return node !== null && ["INPUT", "SELECT"].includes(node.tagName);
  };

  const refresh = async () => {
    if (shown().dataset.live !== "yes") return;
    try {
      if (!isBusy() && !document.hidden) {
        const reply = await fetch(window.location.href, { cache: "no-store" });
        const page = new DOMParser().parseFromString(await reply.text(), "text/html");
        const fresh = page.getElementById("shown");
        if (fresh !== null && !isBusy()) shown().replaceWith(document.adoptNode(fresh));
      }
    } catch {
      // The server was stopped: what is shown stays.
    }
    setTimeout(refresh, PAUSE);
  };

  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isBusy()) return;
    const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
    if (link !== null) {
      event.preventDefault();
      window.location.assign(link.href);
    }
  };

  document.addEventListener("change", (event) => {
    if (event.target.form?.getAttribute("action") === "/") event.target.form.requestSubmit();
  });
  document.addEventListener("keydown", follow);
  setTimeout(refresh, PAUSE);
})();
