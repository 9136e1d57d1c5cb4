// Light or dark before anything is painted: who chose one of them sees no flash of the other. Files here keep their names
// and are cached for ever: another content needs another name.
(() => {
  const chosen = localStorage.getItem("mantine-color-scheme-value");
  const systems = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const scheme = chosen === "dark" || chosen === "light" ? chosen : systems;
  document.documentElement.setAttribute("data-mantine-color-scheme", scheme);
})();
