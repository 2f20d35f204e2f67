// Words in what was said. Chunks of texts and talks are unpacked one after the other, looked through, and let go again,
// so that a page of any size takes little memory; the page stays usable meanwhile.

const LEAST_WORD = 2;
const MOST_KEPT = 12; // words whose episodes are remembered

class SaidSearch {
  constructor(episodes) {
    this.episodes = episodes;
    this.found = new Map(); // word -> 1 for each row in whose texts it stands
    this.run = 0;
  }

  // The words that are still to be looked for.
  missing(query) {
    return wordsOf(query).filter((word) => word.length >= LEAST_WORD && !this.found.has(word));
  }

  // Look for words; true when all chunks have been looked through, false if another search has begun meanwhile.
  async look(words, progress) {
    const run = ++this.run;
    const hits = words.map(() => new Uint8Array(this.episodes.count));
    const inStrings = words.map(() => new Set()); // numbers of the texts that rows share
    const { texts, talks, strings } = this.episodes.index.starts;
    const numChunks = texts.length + talks.length - 2;
    for (let chunk = 0; chunk < numChunks; chunk += 1) {
      const isText = chunk < texts.length - 1;
      const place = isText ? chunk : chunk - texts.length + 1;
      const raw = await unpackText(`pack-${isText ? "texts" : "talks"}-${place}`);
      if (run !== this.run) return false;
      const rows = this.rowsIn(raw, words, inStrings);
      let string = strings[place];
      rows.forEach((row, offset) => {
        if (isText) return mark(hits, words, texts[place] + offset, row);
        const [brought, prompt, replies, calls] = row;
        for (const text of brought) {
          words.forEach((word, which) => holds(text, word) && inStrings[which].add(string));
          string += 1;
        }
        const target = this.episodes.index.with_talks[talks[place] + offset];
        mark(hits, words, target, [replies, calls.map((call) => [call[3], call[4]])]);
        const named = [prompt, ...calls.flatMap((call) => call[2].map(([, number]) => number))];
        inStrings.forEach((found, which) => {
          if (named.some((number) => found.has(number))) hits[which][target] = 1;
        });
      });
      progress((chunk + 1) / numChunks);
    }
    words.forEach((word, which) => this.found.set(word, hits[which]));
    while (this.found.size > MOST_KEPT) this.found.delete(this.found.keys().next().value);
    return true;
  }

  // Most chunks do not hold a rare word, which their JSON shows without being read; it is ASCII, all else is escaped.
  rowsIn(raw, words, inStrings) {
    const plain = words.every((word, which) => /^[a-z0-9_.:/-]+$/.test(word) && inStrings[which].size === 0);
    if (plain) {
      const low = raw.toLowerCase();
      if (!words.some((word) => low.includes(word))) return [];
    }
    return JSON.parse(raw);
  }
}

function wordsOf(query) {
  return [...new Set(query.toLowerCase().split(/\s+/).filter(Boolean))];
}

function mark(hits, words, row, value) {
  words.forEach((word, which) => {
    if (hits[which][row] === 0 && holds(value, word)) hits[which][row] = 1;
  });
}

// Whether a word stands in any text of a JSON value.
function holds(value, word) {
  if (typeof value === "string") return value.toLowerCase().includes(word);
  return typeof value === "object" && value !== null && Object.values(value).some((part) => holds(part, word));
}

// A text in which words stand out.
function highlighted(text, words) {
  if (words.length === 0) return text;
  const escaped = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const parts = text.split(new RegExp(`(${escaped.join("|")})`, "gi"));
  return parts.map((part, place) => (place % 2 ? make("mark", {}, part) : part));
}
