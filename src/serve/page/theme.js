// Dark or light: as the system is, until the button is used.
import {byId} from './dom.js';

function stored() {
  try {
    return localStorage.getItem('nmoe-theme');
  } catch {
    return null;  // a browser that keeps nothing
  }
}

// Calls changed() whenever colors change.
export function startTheme(changed = () => {}) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    changed();
  };
  const apply = () => set(stored() ?? (system.matches ? 'dark' : 'light'));
  system.addEventListener('change', apply);
  byId('theme').addEventListener('click', () => {
    const theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    try {
      localStorage.setItem('nmoe-theme', theme);
    } catch { /* kept for as long as the page is open */ }
    set(theme);
  });
  apply();
}
