/** A small menu that opens beside a button: arrow keys walk through it, Escape and a click elsewhere close it. */
import { PgIcon } from "pagoda/icons.js";

export const PgMenu = {
  components: { PgIcon },
  props: { label: String, items: Array }, // items: {name, icon, words, danger?, href?, download?}
  emits: ["pick"],
  template: `
    <div ref="menu" class="pg-menu-list" popover role="menu" :aria-label="label" @keydown="key">
      <template v-for="item in items" :key="item.name">
        <a v-if="item.href" role="menuitem" tabindex="-1" :href="item.href" download @click="close"><pg-icon :name="item.icon" />{{ item.words }}</a>
        <button v-else type="button" role="menuitem" tabindex="-1" :class="{danger: item.danger}" @click="pick(item)">
          <pg-icon :name="item.icon" />{{ item.words }}</button>
      </template>
    </div>`,
  methods: {
    /** @param {HTMLElement} button */
    open(button) {
      const { menu } = this.$refs;
      menu.showPopover();
      const at = button.getBoundingClientRect();
      const space = { x: innerWidth - menu.offsetWidth - 8, y: innerHeight - menu.offsetHeight - 8 };
      menu.style.left = `${Math.max(8, Math.min(at.left, space.x))}px`;
      menu.style.top = `${Math.max(8, Math.min(at.bottom + 4, space.y))}px`;
      menu.querySelector("[role=menuitem]")?.focus({ preventScroll: true });
    },
    close() {
      this.$refs.menu.hidePopover();
    },
    pick(item) {
      this.close();
      this.$emit("pick", item.name);
    },
    key(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") event.stopPropagation(); // it closes the menu, not the drawer behind it
      if (!step) return;
      event.preventDefault();
      const items = [...this.$refs.menu.querySelectorAll("[role=menuitem]")];
      items.at((items.indexOf(document.activeElement) + step) % items.length).focus();
    },
  },
};
