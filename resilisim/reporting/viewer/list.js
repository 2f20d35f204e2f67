// The list of episodes: search, filters, order, and pages of rows.

const PAGE_ROWS = 15;
const PAUSE = 250; // milliseconds without a keystroke before texts are looked through

class EpisodeList {
  constructor(episodes) {
    this.episodes = episodes;
    this.filters = filtersOf(episodes);
    this.state = { query: "", chosen: {}, order: "costliest" };
    this.said = new SaidSearch(episodes);
    this.rows = chosenRows(episodes, this.filters, this.state, this.said.found);
    this.page = 0;
    this.onChange = null; // called when search, filters or order are others
    this.build();
    this.show();
  }

  // Search, filters and order as they stand in addresses behind "&"; nothing where all is as it was at first.
  address() {
    const { query, chosen, order } = this.state;
    const parts = { query, ...chosen, order: order === "costliest" ? "" : order };
    const text = new URLSearchParams(Object.entries(parts).filter(([, value]) => value !== "")).toString();
    return text === "" ? "" : `&${text}`;
  }

  // Takes search, filters and order from an address; what is not known there counts as not said.
  take(text) {
    const parts = new URLSearchParams(text);
    const set = (node, value, otherwise) => {
      node.value = value ?? otherwise;
      if (node.value !== (value ?? otherwise)) node.value = otherwise;
      return node.value;
    };
    const chosen = {};
    for (const { filter, node } of this.selects) chosen[filter.key] = set(node, parts.get(filter.key), "");
    this.search.value = parts.get("query") ?? "";
    this.change({ query: this.search.value, chosen, order: set(this.order, parts.get("order"), "costliest") });
  }

  build() {
    this.search = make("input", {
      type: "search",
      id: "viewer-search",
      placeholder: "task, tool, policy, cause, episode number, or words that were said",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.search.addEventListener("input", () => this.change({ query: this.search.value }));
    this.order = choice("viewer-order", Object.entries(ORDERS));
    this.order.addEventListener("change", () => this.change({ order: this.order.value }));
    this.selects = this.filters.map((filter) => this.select(filter));
    this.reset = button("Clear all", () => this.clear(), { class: "viewer-clear" });
    this.counts = make("p", { class: "viewer-counts", role: "status", "aria-live": "polite" });
    this.looking = make("span", { class: "viewer-looking muted", hidden: true });
    this.body = make("tbody");
    this.pager = make("div", { class: "viewer-pager" });
    const columns = [
      ["episode", ""],
      ["policy and prompt", ""],
      ["task", ""],
      ["outcome", ""],
      ["turns", "number"],
      ["V*, %", "number"],
      ["points lost by calls", "number"],
      ["points by luck", "number"],
      ["costliest cause", ""],
    ];
    const heads = columns.map(([name, style]) => make("th", { scope: "col", class: style || null }, name));
    this.table = make(
      "table",
      { class: "viewer-table" },
      make("caption", { class: "unseen" }, "Episodes, each a link to its turns"),
      make("thead", {}, make("tr", {}, heads)),
      this.body,
    );
    this.body.addEventListener("keydown", (event) => this.walk(event));
    this.node = make(
      "div",
      { class: "viewer-list" },
      make(
        "form",
        { class: "viewer-form", role: "search", "aria-label": "Episodes" },
        labelled("Search", this.search),
        labelled("Order", this.order),
        this.folded(),
      ),
      make("div", { class: "viewer-status" }, this.counts, this.looking, this.reset),
      this.table,
      this.pager,
    );
    this.node.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  }

  // On narrow pages the filters would fill the screen, so they are folded away there.
  folded() {
    const isWide = window.matchMedia("(min-width: 701px)").matches;
    const controls = this.selects.map(({ filter, node }) => labelled(filter.heading, node));
    const grid = make("div", { class: "viewer-grid" }, controls);
    return make("details", { class: "viewer-filters", open: isWide }, make("summary", {}, "Filters"), grid);
  }

  select(filter) {
    const names = [...filter.counts].sort((left, right) => right[1] - left[1] || (left[0] < right[0] ? -1 : 1));
    const options = names.map(([name, count]) => [name, `${words(name)} (${grouped(count)})`]);
    const node = choice(`viewer-${filter.key}`, [["", "all"], ...options]);
    node.addEventListener("change", () => {
      this.change({ chosen: { ...this.state.chosen, [filter.key]: node.value } });
    });
    return { filter, node };
  }

  change(what) {
    this.state = { ...this.state, ...what };
    this.rows = chosenRows(this.episodes, this.filters, this.state, this.said.found);
    this.page = 0;
    this.show();
    this.onChange?.();
    if ("query" in what) this.lookLater();
  }

  // The words that are searched for.
  words() {
    return wordsOf(this.state.query);
  }

  // Names are found at once; what was said is looked through when nobody is typing.
  lookLater() {
    clearTimeout(this.timer);
    this.said.run += 1; // whatever is under way looks for words that nobody wants any more
    const words = this.said.missing(this.state.query);
    this.looking.hidden = words.length === 0;
    this.looking.textContent = "searching what was said…";
    if (words.length > 0) this.timer = setTimeout(() => this.look(words), PAUSE);
  }

  async look(words) {
    const progress = (share) => {
      this.looking.textContent = `searching what was said… ${Math.floor(100 * share)}%`;
    };
    if (!(await this.said.look(words, progress))) return;
    this.looking.hidden = true;
    this.change({});
  }

  clear() {
    this.search.value = "";
    for (const { node } of this.selects) node.value = "";
    this.change({ query: "", chosen: {} });
    this.search.focus();
  }

  show() {
    const { rows, episodes } = this;
    const first = this.page * PAGE_ROWS;
    this.body.replaceChildren(...rows.slice(first, first + PAGE_ROWS).map((row) => listRow(episodes.episode(row), this)));
    const all = rows.length === episodes.count;
    const fullSuccess = episodes.tables.levels.indexOf("full_success");
    const { level, weight } = episodes.columns;
    const isExplored = weight.some((each) => each !== null); // then episodes are branches, of unequal weight
    const total = (some) => some.reduce((sum, row) => sum + (weight[row] ?? 1), 0);
    const successes = total(rows.filter((row) => level[row] === fullSuccess));
    const whose = isExplored ? "by their weight" : "of them";
    const share = rows.length ? `, ${((100 * successes) / total(rows)).toFixed(1)}% ${whose} full successes` : "";
    const found = counted(episodes.count, isExplored ? "branch" : "episode");
    const which = all ? found : `${grouped(rows.length)} of ${found}`;
    this.counts.textContent = rows.length ? which + share : "No episode is like that.";
    this.reset.hidden = this.state.query === "" && Object.values(this.state.chosen).every((value) => value === "");
    this.table.hidden = rows.length === 0;
    this.showPager();
  }

  showPager() {
    const last = Math.max(0, Math.ceil(this.rows.length / PAGE_ROWS) - 1);
    const turn = (page) => () => {
      this.page = page;
      this.show();
      this.node.scrollIntoView({ block: "start" });
      this.body.querySelector("a")?.focus({ preventScroll: true });
    };
    const to = Math.min(this.rows.length, (this.page + 1) * PAGE_ROWS);
    const place = `${grouped(this.page * PAGE_ROWS + 1)} to ${grouped(to)}`;
    this.pager.hidden = last === 0;
    this.pager.replaceChildren(
      button("First", turn(0), { disabled: this.page === 0 }),
      button("‹ Back", turn(this.page - 1), { disabled: this.page === 0 }),
      quiet(place),
      button("Next ›", turn(this.page + 1), { disabled: this.page === last }),
      button("Last", turn(last), { disabled: this.page === last }),
    );
  }

  // Show the page that holds a row and put the focus on it, as after reading the episode.
  focus(row) {
    const place = this.rows.indexOf(row);
    if (place < 0) return;
    this.page = Math.floor(place / PAGE_ROWS);
    this.show();
    const link = this.body.rows[place % PAGE_ROWS].querySelector("a");
    link.focus({ preventScroll: true });
    link.scrollIntoView({ block: "center" });
  }

  walk(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = event.target.closest("tr");
    const next = step > 0 ? row?.nextElementSibling : row?.previousElementSibling;
    if (!next) return;
    event.preventDefault();
    next.querySelector("a").focus();
  }
}

function listRow(episode, list) {
  const address = () => `#episode-${episode.number}${list.address()}`;
  const cell = (name, style, ...children) => make("td", { class: style || null, "data-name": name }, ...children);
  const where = episode.flaw === null ? episode.prompt : `${episode.prompt}, ${words(episode.flaw.type)}`;
  const costly = episode.cause !== null && episode.regret >= 500;
  const node = make(
    "tr",
    {},
    cell("", "viewer-number", make("a", { href: address() }, `#${episode.number}`)),
    cell("", "viewer-who", make("strong", {}, isolated(episode.name)), quiet(`under ${where}`)),
    cell("", "viewer-task", make("code", {}, isolated(episode.task)), quiet(words(episode.type))),
    cell("", `viewer-outcome ${levelStyle(episode.level)}`, words(episode.level)),
    cell("turns", "number", String(episode.turns)),
    cell("V*", "number", percent(episode.optimum)),
    cell("lost", costly ? "number cost" : "number", cost(episode.regret)),
    cell("luck", "number", points(episode.luck)),
    cell("", "viewer-cause", costly ? causeMark(episode.cause) : ""),
  );
  node.addEventListener("click", (event) => {
    const selected = String(window.getSelection()) !== "";
    if (!selected && event.target.closest("a") === null) window.location.hash = address();
  });
  return node;
}

function labelled(text, control) {
  return make("label", { for: control.id }, make("span", {}, text), control);
}

function choice(id, options) {
  return make("select", { id }, options.map(([value, text]) => make("option", { value }, text)));
}

function levelStyle(level) {
  return level === "full_success" ? "good" : level === "failure" ? "bad" : "muted";
}

// A cause with the colour that it has in the charts above.
function causeMark(cause) {
  return make("span", { class: "viewer-mark" }, square(CAUSES.get(cause)?.style ?? "other-loss"), words(cause));
}
