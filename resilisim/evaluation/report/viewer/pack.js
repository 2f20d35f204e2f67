// Unpacking: blocks of the page are base64 of deflated JSON (see blocks.py). The index holds the columns of all
// episodes; steps and texts lie in chunks that are unpacked when an episode of theirs is opened.

async function unpack(id) {
  const block = document.getElementById(id);
  if (block === null) throw new Error(`this page has no block ${id}`);
  const coded = atob(block.textContent.trim());
  const bytes = new Uint8Array(coded.length);
  for (let place = 0; place < coded.length; place += 1) bytes[place] = coded.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

class Episodes {
  constructor(index) {
    this.index = index;
    this.tables = index.tables;
    this.columns = index.columns;
    this.count = index.columns.index.length;
    this.total = index.episodes;
    this.rowOf = new Map(this.columns.index.map((number, row) => [number, row]));
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
    };
  }

  // The steps of a row, each an object; value, action, luck and chance in millionths.
  async steps(row) {
    const { tables } = this;
    const named = (table, number) => (number < 0 ? null : table[number]);
    const rows = await this.chunk("steps", this.index.step_starts, row);
    return rows.map(([kind, tool, success, error, attempt, chance, value, action, luck, cause]) => ({
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
    }));
  }

  // The texts of a row, or null if they are not in this page.
  async texts(row) {
    return row < this.index.text_starts.at(-1) ? this.chunk("texts", this.index.text_starts, row) : null;
  }

  async chunk(kind, starts, row) {
    let number = 0;
    while (starts[number + 1] <= row) number += 1;
    const id = `pack-${kind}-${number}`;
    const rows = this.chunks.get(id) ?? unpack(id);
    this.chunks.delete(id);
    this.chunks.set(id, rows); // the last used is the last to go
    if (this.chunks.size > 12) this.chunks.delete(this.chunks.keys().next().value);
    return (await rows)[row - starts[number]];
  }
}
