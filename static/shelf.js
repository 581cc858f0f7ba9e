/** All conversations as a file, and back: a menu at the foot of the sidebar. */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { PgMenu } from "pagoda/menu.js";
import { session } from "pagoda/session.js";
import { number, t } from "pagoda/words.js";

export const PgShelf = {
  components: { PgIcon, PgMenu },
  template: `
    <button ref="button" type="button" class="pg-tool" :aria-label="t('files.menu')" :title="t('files.menu')" aria-haspopup="menu"
            :disabled="reading" @click="$refs.menu.open($event.currentTarget)"><pg-icon name="more" /></button>
    <pg-menu ref="menu" :label="t('files.menu')" :items="items" @pick="$refs.file.click()" />
    <input ref="file" type="file" accept=".json,application/json" hidden tabindex="-1" :aria-label="t('files.import')" @change="read">`,
  data: () => ({ reading: false }),
  computed: {
    items: () => [
      { name: "import", icon: "import", words: t("files.import") },
      { name: "json", icon: "braces", words: t("files.all_json"), href: "/api/export?format=json" },
      { name: "md", icon: "text", words: t("files.all_md"), href: "/api/export?format=md" },
    ],
  },
  methods: {
    t,
    async read(event) {
      const [file] = event.target.files;
      event.target.value = ""; // so that the same file can be chosen again
      if (!file) return;
      this.reading = true;
      session.notice = t("files.reading", { name: file.name });
      try {
        const { imported, known } = await api.importFile(file);
        session.notice = t("files.read", { imported: number(imported), known: number(known) });
      } catch (error) {
        session.notice = error.message;
      }
      this.reading = false;
    },
  },
};
