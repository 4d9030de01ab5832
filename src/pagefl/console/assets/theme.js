// Runs before the page is painted. The choice is kept by the browser; without one, its own scheme holds.
"use strict";
try {
  const kept = localStorage.getItem("theme");
  if (kept) document.documentElement.dataset.theme = kept;
} catch { /* storage may be forbidden */ }
