// Which episodes are listed, and in which order.

const ORDERS = {
  costliest: "failures first, costliest first",
  regret: "lost by calls, most first",
  unlucky: "luck, worst first",
  lucky: "luck, best first",
  long: "turns, most first",
  short: "turns, fewest first",
  index: "episode number",
};

// The filters: a heading, and the name of an episode's value by row. Those with one value only are not offered.
function filtersOf(episodes) {
  const { tables, columns } = episodes;
  const byTable = (column, naming) => (row) => (columns[column][row] < 0 ? null : naming(columns[column][row]));
  const policy = (row) => tables.policies[columns.policy[row]];
  const filters = [
    { key: "policy", heading: "Policy", of: (row) => policy(row)[1] },
    { key: "model", heading: "Model", of: (row) => policy(row)[2] },
    { key: "prompt", heading: "Prompt", of: byTable("prompt", (number) => tables.prompts[number]) },
    { key: "flaw", heading: "Flaw", of: byTable("flaw", (number) => tables.flaws[number][0]) },
    { key: "severity", heading: "Severity", of: byTable("flaw", (number) => tables.flaws[number][1]) },
    { key: "type", heading: "Task type", of: (row) => tables.types[tables.tasks[columns.task[row]][1]] },
    { key: "level", heading: "Outcome", of: byTable("level", (number) => tables.levels[number]) },
    { key: "ending", heading: "Ended by", of: byTable("ending", (number) => tables.endings[number]) },
    { key: "cause", heading: "Costliest cause", of: byTable("cause", (number) => tables.causes[number]) },
  ];
  for (const filter of filters) {
    filter.counts = new Map();
    for (let row = 0; row < episodes.count; row += 1) add(filter.counts, filter.of(row));
  }
  const tool = { key: "tool", heading: "Tool called", counts: new Map(), of: null };
  for (let row = 0; row < episodes.count; row += 1) {
    for (const number of tables.tool_sets[columns.tools[row]]) add(tool.counts, tables.tools[number]);
  }
  return [...filters, tool].filter((filter) => filter.counts.size > 1);
}

function add(counts, name) {
  if (name !== null) counts.set(name, (counts.get(name) ?? 0) + 1);
}

// Rows that have every chosen value and every word of the query, in the chosen order.
function chosenRows(episodes, filters, state, said) {
  const tests = wordTests(episodes, state.query, said);
  for (const filter of filters) {
    const wanted = state.chosen[filter.key];
    if (wanted === undefined || wanted === "") continue;
    tests.push(filter.key === "tool" ? toolTest(episodes, wanted) : (row) => filter.of(row) === wanted);
  }
  const rows = [];
  for (let row = 0; row < episodes.count; row += 1) {
    if (tests.every((test) => test(row))) rows.push(row);
  }
  return ordered(episodes, rows, state.order);
}

function ordered(episodes, rows, order) {
  const { index, regret, luck, turns } = episodes.columns;
  const keys = {
    regret: (row) => -regret[row],
    unlucky: (row) => luck[row],
    lucky: (row) => -luck[row],
    long: (row) => -turns[row],
    short: (row) => turns[row],
    index: (row) => index[row],
  };
  const key = keys[order];
  // Rows come in the order of the pack, which stays among equals.
  return key === undefined ? rows : rows.sort((left, right) => key(left) - key(right));
}

function toolTest(episodes, wanted) {
  const { tables, columns } = episodes;
  const holding = tables.tool_sets.map((numbers) => numbers.some((number) => tables.tools[number] === wanted));
  return (row) => holding[columns.tools[row]];
}

// One test per word. A word is looked up in the tables once, so a row is decided by a few numbers. What was said counts
// as soon as it has been looked through.
function wordTests(episodes, query, said) {
  const { tables, columns } = episodes;
  return wordsOf(query).map((word) => {
    const has = (text) => text.toLowerCase().includes(word) || words(text).toLowerCase().includes(word);
    const hits = (names) => names.map((name) => has(name));
    const tool = hits(tables.tools);
    const cause = hits(tables.causes);
    const among = (sets, found) => sets.map((numbers) => numbers.some((number) => found[number]));
    const type = hits(tables.types);
    const found = {
      policy: tables.policies.map(([name]) => has(name)),
      prompt: hits(tables.prompts),
      task: tables.tasks.map(
        ([id, number, required], task) =>
          has(id) || type[number] || required.some((one) => tool[one]) || has(episodes.index.descriptions[task]),
      ),
      flaw: tables.flaws.map((parts) => parts.some(has)),
      level: hits(tables.levels),
      ending: hits(tables.endings),
      causes: among(tables.cause_sets, cause),
      tools: among(tables.tool_sets, tool),
    };
    const number = /^#?\d+$/.test(word) ? Number(word.replace("#", "")) : -1;
    const names = Object.keys(found);
    const spoken = said.get(word);
    return (row) =>
      columns.index[row] === number || names.some((name) => found[name][columns[name][row]]) || spoken?.[row] === 1;
  });
}
