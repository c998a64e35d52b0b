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
