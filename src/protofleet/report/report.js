"use strict";
// Sorts tables by the column whose heading is pressed, and shows the chosen device's confusion matrix.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "-" || y === "-") return (x === "-") - (y === "-");
      const found = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
      return down ? -found : found;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
const chosen = document.getElementById("confusion-of");
chosen?.addEventListener("change", () => {
  const all = JSON.parse(document.getElementById("confusions").textContent);
  const counts = all[chosen.selectedIndex];
  [...document.querySelector("table.confusion").tBodies[0].rows].forEach((row, i) => {
    const total = Math.max(counts[i].reduce((sum, one) => sum + one, 0), 1);
    [...row.querySelectorAll("td")].forEach((cell, j) => {
      const share = counts[i][j] / total;
      cell.textContent = counts[i][j] || "";
      cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
      cell.classList.toggle("dark", share > 0.5);
    });
  });
});
