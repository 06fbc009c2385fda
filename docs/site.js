// What the theme leaves out for people who do not see the page or do not point: names, and tables that keys can scroll.
const name = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((each, n) => each.setAttribute("aria-label", `Code block ${n + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => each.setAttribute("tabindex", "0"));
};
name();
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
