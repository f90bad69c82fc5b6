// Set the theme before the page is drawn: what the reader chose, else what the system prefers.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("hone-theme"); } catch { /* a file may have no storage */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
