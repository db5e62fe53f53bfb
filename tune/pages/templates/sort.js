"use strict";
// A click on a column's name sorts a table by it, another one the other way; empty cells come last.
for (const table of document.querySelectorAll("table.sortable"))
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1, body = table.tBodies[0];
      const text = (row) => row.cells[column].textContent.trim();
      const number = (words) => words.split(":").reduce((sum, part) => 60 * sum + Number(part), 0); // 1:03:25 too
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [text(one), text(other)];
        if (!a || !b) return !a - !b;
        return sign * (number(a) - number(b) || a.localeCompare(b));
      });
      for (const each of table.tHead.rows[0].cells) each.ariaSort = null;
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      body.append(...rows);
    };
  }
