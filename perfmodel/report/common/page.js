// Long lists of texts of figures: the lines that they are made of, and which of them each has.
function texts(lines, numbers) {
  return numbers.map((own) => [].concat(own).map((at) => lines[at]).join("<br>"));
}

// Figures are drawn once the text stands: their scripts wait as text until the library is there.
for (const waiting of document.querySelectorAll("script.drawing")) {
  const script = document.createElement("script");
  script.textContent = waiting.textContent;
  waiting.replaceWith(script);
}

// While the page is printed, figures take the width of the paper and folded parts are open.
(() => {
  "use strict";
  const ZOOM = 0.8; // of figures in print, in page.css
  const PAPER_PIXELS = 690; // A4 with the margins of page.css, at 96 pixels per inch
  const COLUMNS = [0.6, 0.4]; // of a pair in page.css, without the gap of 20 pixels
  const screen_heights = new Map();
  let opened = [];

  function printed_width(figure) {
    const column = figure.closest(".pair > div");
    if (!column) return PAPER_PIXELS / ZOOM;
    const share = COLUMNS[[...column.parentElement.children].indexOf(column)];
    return Math.floor((share * (PAPER_PIXELS - 20)) / ZOOM);
  }

  // a tall picture of a machine would leave half of the sheet before it empty
  const flatter = (figure) => figure.id === "figure-topology" && figure.layout.height > 520;

  function resize(figure, size) {
    figure.style.height = figure.parentElement.style.height = `${size.height}px`;
    Plotly.relayout(figure, size);
  }

  function print(figure) {
    const height = figure.layout.height;
    screen_heights.set(figure, height);
    resize(figure, { width: printed_width(figure), height: flatter(figure) ? 0.76 * height : height });
  }

  const figures = () => document.querySelectorAll(".js-plotly-plot");
  addEventListener("beforeprint", () => {
    for (const figure of figures()) print(figure);
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const figure of figures()) {
      resize(figure, { width: null, height: screen_heights.get(figure), autosize: true });
    }
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
