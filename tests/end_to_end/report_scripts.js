// Bodies of the scripts that tests of the report run in its page, each under the name of its use.
// READY stands for the wait until the list of episodes is there.

//// list
READY
const seen = () => ({
  counts: text(".viewer-counts"),
  numbers: all(".viewer-table tbody a").map((link) => Number(link.textContent.slice(1))),
});
const first = { ...seen(), options: all("#viewer-policy option").map((one) => one.value) };
pick("viewer-policy", "plan-follower");
pick("viewer-prompt", "flawed");
const filtered = seen();
pick("viewer-search", "TASK_ID plan");
const searched = seen();
pick("viewer-search", "no such thing");
const nothing = { ...seen(), hidden: document.querySelector(".viewer-table").hidden };
document.querySelector(".viewer-clear").click();
pick("viewer-order", "index");
const ordered = seen();
all(".viewer-pager button").find((one) => one.textContent.startsWith("Next")).click();
const second = seen();
pick("viewer-order", "unlucky");
return { first, filtered, searched, nothing, ordered, second, unlucky: seen() };

//// counts
READY
return text(".viewer-counts");

//// episode
READY
const heading = () => text(".viewer-heading");
pick("viewer-policy", "random");
const [first, second] = all(".viewer-table tbody tr");
first.cells[3].click();
await until(heading);
const opened = {
  hash: location.hash,
  heading: heading(),
  focus: document.activeElement.className,
  messages: all(".viewer-message pre").map((node) => node.textContent),
  replies: all(".viewer-reply pre").map((node) => node.textContent),
  prompt: text(".viewer-episode > .viewer-told pre"),
  worth: all(".viewer-worth").map((list) => [...list.querySelectorAll("dd")].map((node) => node.textContent)),
  why: all(".viewer-why").map((node) => node.textContent),
  dots: all(".viewer-trace circle").length,
  falls: all(".viewer-trace .regret").length,
  command: text(".viewer-command code"),
  text: text(".viewer"),
};
press("j");
await until(() => heading() !== opened.heading);
const next = { hash: location.hash, heading: heading() };
press("ArrowLeft");
await until(() => heading() === opened.heading);
history.back();
await until(() => all(".viewer-table tbody tr").length > 0);
const left = {
  counts: text(".viewer-counts"),
  policy: document.getElementById("viewer-policy").value,
  focus: document.activeElement.getAttribute("href"),
};
return { opened, next, left, listed: [first, second].map((row) => row.querySelector("a").hash) };

//// said
READY
const numbers = () => all(".viewer-table tbody a").map((link) => Number(link.textContent.slice(1)));
const search = async (words) => {
  pick("viewer-search", words);
  const atOnce = numbers();
  await until(() => document.querySelector(".viewer-looking").hidden);
  return { atOnce, later: numbers() };
};
const found = await search("Insists REASSURANCE");
const shared = await search("Execute&strategy execute".replace("&", " "));
const nothing = await search("reassurance nobodysaidthis");
await search("insists network_fetcher");
location.hash = "#episode-NUMBER";
await until(() => text(".viewer-heading"));
return {
  found, shared, nothing,
  parts: all(".viewer-turn").map((turn) => [...turn.querySelectorAll(".viewer-said")].map((part) => [
    part.querySelector(".viewer-label").textContent, part.querySelector("pre").textContent,
  ])),
  marks: [...new Set(all(".viewer mark").map((node) => node.textContent.toLowerCase()))].sort(),
  folds: all(".viewer-told").map((fold) => [fold.querySelector("summary").textContent, fold.open]),
};

//// address
const heading = await until(() => text(".viewer-heading"));
document.querySelector('nav a[href="#results"]').click();
await until(() => all(".viewer-table tbody tr").length > 0);
const calledBack = document.activeElement.closest(".viewer") !== null;
location.hash = "#episode-999999";
const missing = await until(() => text(".viewer .warning"));
location.hash = "#episode-0";
await until(() => text(".viewer-heading")?.startsWith("Episode #0"));
press("Escape");
await until(() => all(".viewer-table tbody tr").length > 0);
const links = all('a[href^="#"]').map((link) => link.getAttribute("href"));
const lost = links.filter((link) => !link.startsWith("#episode-") && document.querySelector(link) === null);
return { heading, calledBack, missing, hash: location.hash, lost };

//// filters
READY
const seen = () => ({
  hash: location.hash,
  policy: document.getElementById("viewer-policy").value,
  prompt: document.getElementById("viewer-prompt").value,
  query: document.getElementById("viewer-search").value,
  numbers: all(".viewer-table tbody a").map((link) => Number(link.textContent.slice(1))),
  top: document.querySelector(".viewer-form").getBoundingClientRect().top < innerHeight,
});
const first = seen();
pick("viewer-prompt", "");
const fewer = seen();
document.querySelector(".viewer-clear").click();
return { first, fewer, cleared: seen() };

//// in view
await until(() => text(".viewer-heading"));
const place = () => {
  const { top, bottom } = document.querySelector(".viewer-heading").getBoundingClientRect();
  return { top, bottom, start: document.querySelector(".viewer-episode").getBoundingClientRect().top };
};
const first = place();
await new Promise((resolve) => setTimeout(resolve, 1000));
return { first, later: place(), height: innerHeight, scrolled: scrollY };

//// numbers
READY
all("details").forEach((one) => { one.open = true; });
const seen = all(".scroll td.number").filter((cell) => cell.textContent !== "");
const lost = seen.filter((cell) => {
  const { left, right, width } = cell.getBoundingClientRect();
  return width === 0 || left < 0 || right > innerWidth || cell.scrollWidth > cell.clientWidth;
});
const above = (cell) => getComputedStyle(cell, "::before").content;
const named = (cell) => [JSON.stringify(cell.dataset.name), "attr(data-name)"].includes(above(cell));
return {
  seen: seen.length,
  lost: lost.map((cell) => cell.outerHTML.slice(0, 120)),
  unnamed: seen.filter((cell) => !named(cell)).map(above),
  names: [...document.querySelectorAll("#results tbody tr:first-child td")].map((cell) => cell.dataset.name),
};

//// contrast
READY
const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
const wide = () => ({ page: document.documentElement.scrollWidth, window: window.innerWidth });
const channels = (color) => color.match(/[\d.]+/g).map(Number);
const light = (color) => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = channels(color).map((part) => linear(part / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (let at = node; at !== null; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if ((channels(color)[3] ?? 1) > 0) return color;
  }
  return getComputedStyle(document.documentElement).backgroundColor;
};
const faint = (selector) => all(selector).filter((node) => {
  if (node.textContent.trim() === "" || node.disabled || node.getClientRects().length === 0) return false;
  const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map((node) => node.outerHTML.slice(0, 80));
const list = { ...wide(), faint: faint(".viewer :is(td, td span, a, label, p, button, input, select)") };
document.querySelector(".viewer-table a").click();
await until(() => text(".viewer-heading"));
const names = ".viewer :is(p, dt, dd, dd span, pre, h3, h3 span, code, summary, li span, button)";
return { isDark, list, episode: { ...wide(), faint: faint(names) } };

//// hostile
READY
pick("viewer-search", "onerror");
await until(() => document.querySelector(".viewer-looking").hidden);
document.querySelector(".viewer-table a").click();
await until(() => text(".viewer-heading"));
all("details").forEach((one) => { one.open = true; });
return {
  title: document.title,
  message: text(".viewer-message pre"),
  said: all(".viewer-said pre").map((node) => node.textContent),
  marks: all(".viewer mark").length,
  foreign: all(".viewer :is(img, b, script)").length,
  prints: text(".viewer").split("onerror").length > 4,
};

//// cards
const cards = document.querySelector(".cards");
return [1080, 820, 560, 345].map((width) => {
  cards.style.width = `${width}px`;
  const ends = {};
  for (const card of cards.children) ends[Math.round(card.getBoundingClientRect().top)] = card;
  const right = cards.getBoundingClientRect().right;
  return Object.values(ends).map((last) => last.getBoundingClientRect().right - right);
});

//// printed
READY
const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
const printed = rules.filter((rule) => rule.media?.mediaText === "print").flatMap((rule) => [...rule.cssRules]);
const hidden = printed.filter((rule) => rule.style.display === "none").map((rule) => rule.selectorText);
const isHidden = (node) => hidden.some((names) => node.matches(names));
const left = all(".viewer-form, .viewer-pager, nav").filter((node) => !isHidden(node)).length;
// Folds are open on paper, but for published figures: the same rules, outside of print.
const tables = ["#results details:not(.published) table", "#results .published table"];
const seen = () => tables.map((selector) => document.querySelector(selector).checkVisibility());
const before = seen();
const style = document.createElement("style");
style.textContent = printed.map((rule) => rule.cssText).filter((one) => /details|published/.test(one)).join("");
document.head.append(style);
return { left, before, after: seen() };

//// no script
const frame = document.querySelector("iframe");
const section = await until(() => frame.contentDocument.querySelector("#episodes noscript"));
return section.parentElement.textContent;

//// complaints
console.error("a complaint");
const foreign = document.createElement("script");
foreign.textContent = "document.title = 'owned'";
document.head.append(foreign);
return document.title;
