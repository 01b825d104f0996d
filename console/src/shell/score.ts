/** How well a text answers a search; 0 for not at all. Beginnings come first, then parts, then scattered letters. */
export function score(search: string, text: string): number {
  const wanted = fold(search);
  const given = fold(text);
  if (wanted === "") return 1;
  if (given.startsWith(wanted)) return 100 - given.length / 1000;
  const at = given.indexOf(wanted);
  if (at > 0) return (/[\s:·/-]/.test(given[at - 1]!) ? 80 : 50) - given.length / 1000;
  let from = 0;
  for (const letter of wanted) {
    const found = given.indexOf(letter, from);
    if (found === -1) return 0;
    from = found + 1;
  }
  return wanted.length < 2 ? 0 : 10 - from / 1000;
}

/** Without case and accents. */
function fold(text: string): string {
  return text
    .normalize("NFD")
    .replace(/\p{Diacritic}/gu, "")
    .toLowerCase();
}
