// The viewer: the list (#episodes), or the episode that the address names (#episode-NUMBER), so that links and the
// browser's back button work. Behind "&" stands what is searched for and filtered by; an address without that keeps it.

const ADDRESS = /^#episode-(\d+)(?:&(.*))?$/;
const LISTED = /^#episodes(?:&(.*))?$/;

class Viewer {
  constructor(place, episodes) {
    this.place = place;
    this.episodes = episodes;
    this.list = new EpisodeList(episodes);
    this.list.onChange = () => this.remember();
    this.opened = null; // row of the opened episode
    this.redraw = null;
    place.replaceChildren(this.list.node);
    window.addEventListener("hashchange", () => this.follow());
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("resize", () => this.redraw?.());
    this.follow();
  }

  // Writes search and filters into the address, which leads nowhere by that.
  remember() {
    const isSaid = this.list.address() !== "" || window.location.hash.includes("&");
    if (this.taking || !isSaid) return;
    const place = this.opened === null ? "#episodes" : `#episode-${this.episodes.columns.index[this.opened]}`;
    window.history.replaceState(null, "", place + this.list.address());
  }

  // Takes search and filters from the address, if they stand there and are others.
  take(text) {
    if (text === undefined || `&${text}` === this.list.address()) return;
    this.taking = true;
    this.list.take(text);
    this.taking = false;
  }

  isListed() {
    return window.location.hash === "" || LISTED.test(window.location.hash);
  }

  async follow() {
    const match = ADDRESS.exec(window.location.hash);
    const listed = LISTED.exec(window.location.hash);
    this.take((match?.[2] ?? listed?.[1]) || undefined);
    if (match === null) {
      this.close();
      if (listed?.[1]) document.getElementById("episodes")?.scrollIntoView({ block: "start" });
      return;
    }
    const number = Number(match[1]);
    const row = this.episodes.rowOf.get(number);
    if (row === undefined) return this.missing(number);
    this.opened = row;
    const { episodes } = this;
    const parts = await Promise.all([episodes.steps(row), episodes.texts(row), episodes.talk(row)]);
    if (this.opened === row) this.show(row, ...parts);
  }

  show(row, steps, texts, talk) {
    const said = { texts, talk, sought: this.list.words() };
    const width = () => Math.min(1080, Math.max(300, this.place.clientWidth));
    const { view, heading } = episodeView(this.episodes, row, steps, said, this.navigation(row), width());
    const chart = view.querySelector(".viewer-chart");
    this.redraw = () => chart.replaceChildren(traceChart(steps, this.episodes.columns.optimum[row], width()));
    this.place.replaceChildren(view);
    this.place.classList.add("viewer-reading");
    heading.focus({ preventScroll: true });
    view.scrollIntoView({ block: "start" });
  }

  close() {
    const row = this.opened;
    if (row === null && this.place.childNodes.length === 1 && this.list.node.isConnected) return;
    this.opened = null;
    this.redraw = null;
    this.place.classList.remove("viewer-reading");
    this.place.replaceChildren(this.list.node);
    // Who follows a link to another section is not called back here.
    if (row !== null && this.isListed()) this.list.focus(row);
  }

  missing(number) {
    this.opened = null;
    this.redraw = null;
    const known = number < this.episodes.total ? "is not in this file" : "is not in this file, or not finished";
    const text = `Episode #${number} ${known}. In a terminal: `;
    this.place.replaceChildren(
      make("p", { class: "warning" }, text, make("code", {}, `${this.episodes.index.command} ${number}`)),
      this.list.node,
    );
    this.place.scrollIntoView({ block: "start" });
  }

  navigation(row) {
    const order = this.order(row);
    const place = order.indexOf(row);
    const to = (step, text, key) =>
      button(text, () => this.move(step), { disabled: order[place + step] === undefined, title: `key ${key}` });
    const back = button("← List", () => this.leave(), { title: "key Escape" });
    const where = quiet(`${grouped(place + 1)} of ${grouped(order.length)}`);
    return make(
      "div",
      { class: "viewer-bar" },
      back,
      make("span", { class: "viewer-steps" }, to(-1, "‹ Previous", "k"), where, to(1, "Next ›", "j")),
    );
  }

  // The listed rows, or all of them if a link led to an episode that is not listed.
  order(row) {
    return this.list.rows.includes(row) ? this.list.rows : [...this.episodes.rowOf.values()];
  }

  move(step) {
    const order = this.order(this.opened);
    const next = order[order.indexOf(this.opened) + step];
    // In place of the address that stands there: going back leads to the list, however many were read.
    if (next !== undefined) window.location.replace(`#episode-${this.episodes.columns.index[next]}${this.list.address()}`);
  }

  leave() {
    window.location.hash = `#episodes${this.list.address()}`;
  }

  key(event) {
    const isTyping = Boolean(event.target.closest?.("input, select, textarea, pre[tabindex]"));
    if (this.opened === null || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      this.move(step);
    } else if (event.key === "Escape") {
      this.leave();
    }
  }
}

async function start() {
  const place = document.getElementById("viewer");
  if (place === null) return;
  if (typeof DecompressionStream === "undefined") {
    place.replaceChildren(make("p", { class: "warning" }, "This browser is too old to unpack the episodes."));
    return;
  }
  const episodes = new Episodes(await unpack("pack-index"));
  new Viewer(place, episodes);
  performance.mark("viewer-ready");
}

start().catch((error) => {
  const text = `The episodes cannot be shown: ${error.message}`;
  document.getElementById("viewer").replaceChildren(make("p", { class: "warning" }, text));
});
