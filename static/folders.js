/** Folders of this computer in which models are looked for, besides the hub's cache. */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { number, t } from "pagoda/words.js";

export const PgFolders = {
  components: { PgIcon },
  emits: ["changed"],
  template: `
    <section class="pg-folders">
      <h3>{{ t('folders.title') }}</h3>
      <form class="pg-inline" @submit.prevent="add">
        <input v-model="path" dir="ltr" autocomplete="off" autocapitalize="off" spellcheck="false" maxlength="4096"
               :placeholder="t('folders.placeholder')" :aria-label="t('folders.path')">
        <button class="pg-button" :disabled="!path.trim() || looking">{{ t('folders.look') }}</button>
      </form>
      <p v-if="error" class="pg-settings-error" role="alert">{{ error }}</p>
      <p v-else-if="found" role="status">{{ t('folders.found', {count: number(found)}) }}</p>
      <ul>
        <li v-for="folder in folders" :key="folder"><span dir="ltr">{{ folder }}</span>
          <button type="button" class="pg-tool" :aria-label="t('folders.drop', {path: folder})" @click="drop(folder)"><pg-icon name="close" /></button></li>
      </ul>
    </section>`,
  data: () => ({ path: "", folders: [], found: 0, error: null, looking: false }),
  async mounted() {
    await this.ask(async () => (this.folders = (await api.folders()).folders));
  },
  methods: {
    t,
    number,
    add() {
      return this.ask(async () => {
        const { found, folders } = await api.addFolder(this.path);
        Object.assign(this, { folders, found: found.length, path: "" });
        this.$emit("changed");
      });
    },
    drop(path) {
      return this.ask(async () => {
        this.folders = (await api.dropFolder(path)).folders;
        this.found = 0;
        this.$emit("changed");
      });
    },
    async ask(request) {
      this.error = null;
      this.looking = true;
      try {
        await request();
      } catch (error) {
        this.error = error.message;
      }
      this.looking = false;
    },
  },
};
