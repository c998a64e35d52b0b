// Shows the steps of a schedule one at a time, with buttons; without scripts and in print all are there.
document.addEventListener("DOMContentLoaded", () => {
  for (const holder of document.querySelectorAll(".schedule-steps")) {
    const figures = [...holder.querySelectorAll("figure")];
    const bar = document.createElement("nav");
    const button = (text, move) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", () => show(at + move));
      return made;
    };
    const back = button("Back", -1);
    const forward = button("Forward", 1);
    const where = document.createElement("span");
    where.setAttribute("aria-live", "polite");
    let at = 0;
    const show = (number) => {
      at = Math.max(0, Math.min(figures.length - 1, number));
      figures.forEach((figure, index) => figure.classList.toggle("shown", index === at));
      back.disabled = at === 0;
      forward.disabled = at === figures.length - 1;
      where.textContent = at === 0 ? "start" : `step ${at} of ${figures.length - 1}`;
    };
    holder.tabIndex = 0;
    holder.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") show(at - 1);
      if (event.key === "ArrowRight") show(at + 1);
    });
    bar.append(back, where, forward);
    holder.prepend(bar);
    holder.classList.add("one-at-a-time");
    show(0);
  }
});
