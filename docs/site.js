// Names for what the theme leaves without one, for people who do not see the page.
const name = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((each, n) => each.setAttribute("aria-label", `Code block ${n + 1}`));
};
name();
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
