/** Small line icons, drawn for this page, as one Vue component: <pg-icon name="stop" />. */
import { h } from "vue";

const SHAPES = {
  menu: '<path d="M4 7h16M4 12h16M4 17h10"/>',
  plus: '<path d="M12 5v14M5 12h14"/>',
  send: '<path d="M12 19V5.5M6 11.2 12 5l6 6.2"/>',
  stop: '<rect x="7" y="7" width="10" height="10" rx="2" fill="currentColor" stroke="none"/>',
  pencil: '<path d="M5 19l.8-3.6L16 5.2a1.7 1.7 0 0 1 2.4 0l.4.4a1.7 1.7 0 0 1 0 2.4L8.6 18.2z"/>',
  bin: '<path d="M5 7h14M10 7V5h4v2M7 7l.8 12h8.4L17 7M10.5 10.5v5M13.5 10.5v5"/>',
  copy: '<rect x="9" y="9" width="10" height="10" rx="2"/><path d="M15 9V7a2 2 0 0 0-2-2H7a2 2 0 0 0-2 2v6a2 2 0 0 0 2 2h2"/>',
  done: '<path d="M5.5 12.5l4.2 4.2L18.5 8"/>',
  again: '<path d="M18.5 9.5A7 7 0 1 0 19 13M19 5v4.7h-4.7"/>',
  onward: '<path d="M5 12h13M12.5 6.5 18 12l-5.5 5.5"/>',
  previous: '<path d="M14 6.5 8.5 12l5.5 5.5"/>',
  next: '<path d="M10 6.5 15.5 12 10 17.5"/>',
  down: '<path d="M12 5v13.5M6 12.8 12 19l6-6.2"/>',
  more: '<circle cx="6" cy="12" r="1"/><circle cx="12" cy="12" r="1"/><circle cx="18" cy="12" r="1"/>',
  pin: '<path d="M9 4.5h6l-.8 6 2.8 3H7l2.8-3zM12 13.5V20"/>',
  box: '<path d="M4.5 5h15v4h-15zM6 9v10h12V9M10 13h4"/>',
  unbox: '<path d="M4.5 9h15M6 9v10h12V9M12 16v-9M8.8 7.5 12 4.3l3.2 3.2"/>',
  text: '<path d="M7 4h7l4 4v12H7zM14 4v4h4M10 12h5M10 15.5h5"/>',
  braces: '<path d="M9.5 5C7 5 8.5 11 6 12c2.5 1 1 7 3.5 7M14.5 5c2.5 0 1 6 3.5 7-2.5 1-1 7-3.5 7"/>',
  import: '<path d="M12 4v10.5M7.5 10.3 12 14.8l4.5-4.5M5 19h14"/>',
  search: '<circle cx="11" cy="11" r="5.5"/><path d="m15.2 15.2 4.3 4.3"/>',
  sliders: '<path d="M4 8h8M16 8h4M4 16h4M12 16h8"/><circle cx="14" cy="8" r="2"/><circle cx="10" cy="16" r="2"/>',
  chevron: '<path d="M7 10l5 5 5-5"/>',
  close: '<path d="M6.5 6.5l11 11M17.5 6.5l-11 11"/>',
};

export const PgIcon = (props) =>
  h("svg", {
    class: "pg-icon",
    viewBox: "0 0 24 24",
    "aria-hidden": "true",
    innerHTML: SHAPES[props.name],
  });
PgIcon.props = ["name"];
