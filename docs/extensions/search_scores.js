/* Of pages that hold a word equally, those that say how to do something come before those that say how it was measured. */
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const boosts = [
      [/^faq$/, 5],
      [/^(guides|environments|integrations)\//, 4],
      [/^(start|glossary|how-it-works)$/, 3],
      [/^(reference\/commands|tutorials|notebooks)\//, 3],
      [/^(results|development)\//, -8],
      [/^(changes|upgrading|architecture|comparison)$/, -2],
    ];
    const boost = kind === "object" ? undefined : boosts.find(([pages]) => pages.test(docname));
    return score + (boost ? boost[1] : 0);
  },
};
