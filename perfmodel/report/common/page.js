// Figures are drawn once the text stands: their scripts wait as text until the library is there.
for (const waiting of document.querySelectorAll("script.drawing")) {
  const script = document.createElement("script");
  script.textContent = waiting.textContent;
  waiting.replaceWith(script);
}

// While the page is printed, wide figures take the width of the paper and folded parts are open.
(() => {
  "use strict";
  const PAPER_PIXELS = 690; // A4 with the margins of page.css, at 96 pixels per inch
  let narrowed = [];
  let opened = [];
  addEventListener("beforeprint", () => {
    narrowed = [...document.querySelectorAll(".js-plotly-plot")].filter(
      (figure) => figure.clientWidth > PAPER_PIXELS,
    );
    for (const figure of narrowed) Plotly.relayout(figure, { width: PAPER_PIXELS });
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const figure of narrowed) Plotly.relayout(figure, { width: null, autosize: true });
    for (const part of opened) part.open = false;
  });
})();

// On a narrow screen a table that does not fit shows each row as a card: a value beside its title.
(() => {
  "use strict";
  const narrow = matchMedia("screen and (max-width: 760px)");
  const HALF_A_CARD = 19; // letters of title and value, beside another pair
  const tables = [...document.querySelectorAll(".scroll > table")];

  function name_cells(table) {
    const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => {
        cell.dataset.title = titles[at];
        const letters = titles[at].length + cell.textContent.length;
        const is_text = cell.matches(".w, .s");
        cell.classList.toggle("whole", at === 0 || is_text || letters > HALF_A_CARD);
      });
    }
  }

  function arrange() {
    for (const table of tables) table.classList.remove("stacked");
    if (!narrow.matches) return;
    const wide = tables.filter((table) => table.offsetWidth > table.parentElement.clientWidth);
    for (const table of wide) {
      name_cells(table);
      table.classList.add("stacked");
    }
  }

  arrange();
  addEventListener("resize", arrange);
  narrow.addEventListener("change", arrange);
})();
