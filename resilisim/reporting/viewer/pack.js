// Unpacking: blocks of the page are base64 of deflated JSON (see blocks.py). The index holds the columns of all
// episodes; steps, texts and talks lie in chunks that are unpacked when an episode of theirs is opened.

async function unpack(id) {
  return JSON.parse(await unpackText(id));
}

async function unpackText(id) {
  const block = document.getElementById(id);
  if (block === null) throw new Error(`this page has no block ${id}`);
  const coded = atob(block.textContent.trim());
  const bytes = new Uint8Array(coded.length);
  for (let place = 0; place < coded.length; place += 1) bytes[place] = coded.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

class Episodes {
  constructor(index) {
    this.index = index;
    this.tables = index.tables;
    this.columns = index.columns;
    this.count = index.columns.index.length;
    this.total = index.episodes;
    this.rowOf = new Map(this.columns.index.map((number, row) => [number, row]));
    this.talkOf = new Map(index.with_talks.map((row, talk) => [row, talk]));
    this.chunks = new Map(); // block id -> promise of its rows; only the last few are kept
  }

  // What one row of the list says, with numbers of tables turned into what they stand for.
  episode(row) {
    const { tables, columns } = this;
    const at = (name) => columns[name][row];
    const [name, policy, model, privileged] = tables.policies[at("policy")];
    const [task, type, required] = tables.tasks[at("task")];
    const flaw = at("flaw") < 0 ? null : tables.flaws[at("flaw")];
    return {
      row,
      number: at("index"),
      name,
      policy,
      model,
      privileged,
      prompt: tables.prompts[at("prompt")],
      task,
      type: tables.types[type],
      required: required.map((tool) => tables.tools[tool]),
      description: this.index.descriptions[at("task")],
      flaw: flaw === null ? null : { type: flaw[0], severity: flaw[1], method: flaw[2] },
      seed: tables.seeds[at("seed")],
      level: tables.levels[at("level")],
      ending: tables.endings[at("ending")],
      optimum: at("optimum"),
      regret: at("regret"),
      luck: at("luck"),
      turns: at("turns"),
      cause: at("cause") < 0 ? null : tables.causes[at("cause")],
      weight: at("weight"),
    };
  }

  // The steps of a row, each an object; value, action, luck and chance in millionths.
  async steps(row) {
    const { tables } = this;
    const named = (table, number) => (number < 0 ? null : table[number]);
    const rows = await this.row("steps", row);
    return rows.map(([kind, tool, success, error, attempt, chance, value, action, luck, cause, best]) => ({
      kind: tables.kinds[kind],
      tool: named(tables.tools, tool),
      success: success < 0 ? null : success === 1,
      error: named(tables.errors, error),
      attempt,
      chance,
      value,
      action,
      luck,
      regret: value - action,
      after: action + luck,
      cause: named(tables.causes, cause),
      best: best === undefined ? null : named(tables.bests, best),
    }));
  }

  // The texts of a row, or null if they are not in this page.
  async texts(row) {
    return row < this.index.starts.texts.at(-1) ? this.row("texts", row) : null;
  }

  // What was said in a row's episode, or null if it is not in this page; long texts are cut (see messageText).
  async talk(row) {
    const number = this.talkOf.get(row);
    if (number === undefined) return null;
    const [, prompt, replies, calls] = await this.row("talks", number);
    const call = async ([component, turn, told, thoughts, wrote]) => {
      const texts = told.map(async ([role, text]) => ({ role, text: await this.string(text) }));
      return { component, turn, told: await Promise.all(texts), thoughts, wrote };
    };
    return {
      prompt: prompt === null ? null : await this.string(prompt),
      replies,
      calls: await Promise.all(calls.map(call)),
    };
  }

  // A text that rows of talks name by its number.
  async string(number) {
    const place = placeAmong(this.index.starts.strings, number);
    const rows = await this.chunk(`pack-talks-${place}`);
    return rows.flatMap(([brought]) => brought)[number - this.index.starts.strings[place]];
  }

  async row(kind, number) {
    const starts = this.index.starts[kind];
    const place = placeAmong(starts, number);
    return (await this.chunk(`pack-${kind}-${place}`))[number - starts[place]];
  }

  chunk(id) {
    const rows = this.chunks.get(id) ?? unpack(id);
    this.chunks.delete(id);
    this.chunks.set(id, rows); // the last used is the last to go
    if (this.chunks.size > 24) this.chunks.delete(this.chunks.keys().next().value);
    return rows;
  }
}

function placeAmong(starts, number) {
  let place = 0;
  while (starts[place + 1] <= number) place += 1;
  return place;
}
