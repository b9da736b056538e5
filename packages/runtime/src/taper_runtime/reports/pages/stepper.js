// Goes through numbered steps: buttons, a slider, a list, a search, the arrow keys, the page's
// address. Position 0 is before the first step, position n after the n-th.

class Stepper {
  // count: of steps. unit, start: what one, and position 0, is called. title(number), group(number), text(number):
  // a step in the list, the words above it and those around it, what a search looks through.
  // search: what the search box says. show(position): draws it.
  constructor({ count, unit, start, title, group, text, search, show }) {
    Object.assign(this, { count, unit, start, title, group, text, show });
    this.position = 0;
    this.matches = null; // numbers of the steps that the search has found
    this.list = make("select", { class: "steps", size: "24", "aria-label": "Steps" });
    this.list.addEventListener("change", () => this.go(Number(this.list.value)));
    this.tools = this.makeTools(search);
    this.fillList();
    this.listen();
  }

  makeTools(search) {
    this.search = make("input", { type: "search", placeholder: search, "aria-label": "Search steps" });
    this.found = make("span", { class: "faint", role: "status" });
    this.where = make("output", { class: "where" });
    this.slider = make("input", { type: "range", min: "0", max: String(this.count), "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(); });
    return make("div", { class: "tools" },
      button("First", () => this.go(0)), button("Previous", () => this.previous()),
      button("Next", () => this.next()), button("Last", () => this.go(this.count)),
      this.slider, this.where, this.search, this.found);
  }

  // The arrow keys step, unless what has the focus knows them.
  listen() {
    document.addEventListener("keydown", (event) => {
      const taken = event.target.closest("input, select, .scroll, .details, svg");
      if (taken || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      if (event.key === "ArrowRight") this.next();
      if (event.key === "ArrowLeft") this.previous();
    });
    window.addEventListener("hashchange", () => this.go(this.fromAddress()));
  }

  // The step that the page's address names; the current one if it names none.
  fromAddress() {
    const found = /^#step-(\d+)$/.exec(location.hash);
    return found ? Math.min(Number(found[1]), this.count) : this.position;
  }

  next() {
    const later = this.matches ? this.matches.find((number) => number >= this.position) : this.position;
    if (later !== undefined) this.go(later + 1);
  }

  previous() {
    const before = this.position - 1;
    const earlier = this.matches ? this.matches.findLast((number) => number < before) : before - 1;
    if (earlier !== undefined) this.go(earlier + 1);
  }

  go(position) {
    this.position = Math.min(Math.max(position, 0), this.count);
    const at = this.position;
    this.where.textContent = at === 0 ? `${this.start}, ${this.count} ${this.unit}s` : `${this.unit} ${at} of ${this.count}`;
    this.slider.value = String(at);
    this.list.value = String(at);
    this.show(at);
    if (at > 0) history.replaceState(null, "", `#step-${at}`);
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    const numbers = [...Array(this.count).keys()];
    this.matches = wanted ? numbers.filter((number) => this.text(number).includes(wanted)) : null;
    this.found.textContent = this.matches ? `${this.matches.length} ${this.unit}s, Enter shows the next` : "";
    this.fillList();
  }

  fillList() {
    const groups = [];
    const option = (value, text) => make("option", { value: String(value) }, text);
    let group = null;
    for (const number of this.matches || Array(this.count).keys()) {
      if (this.group(number) !== group) {
        group = this.group(number);
        groups.push(make("optgroup", { label: group }));
      }
      groups.at(-1).append(option(number + 1, `${number + 1}  ${this.title(number)}`));
    }
    this.list.replaceChildren(...(this.matches ? [] : [option(0, this.start)]), ...groups);
    this.list.value = String(this.position);
  }
}
