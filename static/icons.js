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
