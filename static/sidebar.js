/**
 * The list of conversations. The server drives it through `rows`, `row` and `gone` (ui/sidebar.py). A row says by its
 * dot what goes on in it: a reply is running, there is something unread, something failed.
 */
import * as api from "pagoda/api.js";
import { forget } from "pagoda/conversation.js";
import { PgIcon } from "pagoda/icons.js";
import { compose, go, leaveDeleted, onScreen, session } from "pagoda/session.js";
import { choices, setTheme, theme } from "pagoda/theme.js";
import { language, languages, number, setLanguage, t, titleOf } from "pagoda/words.js";

const DAY = 86_400;

export default {
  components: { PgIcon },
  template: `
    <div class="pg-drawer" :class="{open: session.drawer}" @keydown.esc="closeDrawer">
      <div class="pg-scrim" @click="closeDrawer"></div>
      <nav class="pg-sidebar" :aria-label="t('sidebar.label')">
        <header>
          <a href="/" class="pg-brand" @click.exact.prevent="fresh"><span class="pg-mark" aria-hidden="true"></span>Pagoda</a>
          <button ref="close" type="button" class="pg-tool pg-close" :aria-label="t('sidebar.close')" @click="closeDrawer">
            <pg-icon name="close" /></button>
        </header>
        <button type="button" class="pg-new" @click="fresh"><pg-icon name="plus" />{{ t('sidebar.new') }}</button>
        <div class="pg-rows">
          <p v-if="session.rowsKnown && !session.rows.length" class="pg-none">{{ t('sidebar.none') }}</p>
          <section v-for="group in groups" :key="group.name">
            <h2>{{ t(group.name) }}</h2>
            <ul>
              <li v-for="row in group.rows" :key="row.id" class="pg-row" :class="{current: row.id === currentId, asked: row.id === deleting?.id}"
                  :data-conversation="row.id" :data-dot="dot(row)">
                <form v-if="renaming?.id === row.id" @submit.prevent="rename">
                  <input ref="name" v-model="renaming.title" :aria-label="t('sidebar.title')" maxlength="200"
                         @keydown.esc.stop="renaming = null" @keydown.enter="confirmsWord" @blur="rename">
                </form>
                <template v-else>
                  <a :href="'/c/' + row.id" :aria-current="row.id === currentId ? 'page' : null"
                     @click.exact.prevent="open(row.id)" @dblclick.prevent="startRename(row)">
                    <span class="pg-row-title" dir="auto">{{ titleOf(row.title) }}</span>
                    <span v-if="dot(row)" class="pg-dot" :title="t('sidebar.' + dot(row))">
                      <span class="pg-unseen">{{ t('sidebar.' + dot(row)) }}</span>
                      <small v-if="row.running && row.percent !== null">{{ number(row.percent) }}%</small>
                    </span>
                  </a>
                  <span class="pg-row-tools">
                    <button type="button" class="pg-tool" :aria-label="t('sidebar.rename', {title: titleOf(row.title)})"
                            :title="t('action.rename')" @click="startRename(row)"><pg-icon name="pencil" /></button>
                    <button type="button" class="pg-tool" :aria-label="t('sidebar.delete', {title: titleOf(row.title)})"
                            :title="t('action.delete')" @click="askDelete(row)"><pg-icon name="bin" /></button>
                  </span>
                </template>
              </li>
            </ul>
          </section>
        </div>
        <footer>
          <label><span class="pg-unseen">{{ t('settings.language') }}</span>
            <select :value="language.code" @change="setLanguage($event.target.value)">
              <option v-for="each in languages" :value="each.code" :lang="each.code">{{ each.name }}</option>
            </select></label>
          <label><span class="pg-unseen">{{ t('settings.theme') }}</span>
            <select :value="theme.choice" @change="setTheme($event.target.value)">
              <option v-for="choice in choices" :value="choice">{{ t('settings.theme_' + choice) }}</option>
            </select></label>
        </footer>
      </nav>
      <dialog ref="dialog" class="pg-dialog" @close="deleting = null">
        <form method="dialog" v-if="deleting">
          <h2>{{ t('delete.title') }}</h2>
          <p dir="auto">{{ t('delete.body', {title: titleOf(deleting.title)}) }}</p>
          <div class="pg-dialog-actions">
            <button class="pg-button" value="keep" autofocus>{{ t('action.keep') }}</button>
            <button type="button" class="pg-button danger" @click="remove">{{ t('action.delete') }}</button>
          </div>
        </form>
      </dialog>
    </div>`,
  data: () => ({ session, theme, choices, language, languages, renaming: null, deleting: null }),
  computed: {
    currentId: () => onScreen.value.id,
    groups() {
      const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
      const group = { "sidebar.today": [], "sidebar.week": [], "sidebar.older": [] };
      for (const row of [...session.rows].sort((one, other) => other.updated_at - one.updated_at)) {
        const name = row.updated_at >= midnight ? "today" : row.updated_at >= midnight - 6 * DAY ? "week" : "older";
        group[`sidebar.${name}`].push(row);
      }
      return Object.entries(group).filter(([, rows]) => rows.length).map(([name, rows]) => ({ name, rows }));
    },
  },
  watch: {
    "session.drawer"(open) {
      if (open) this.$nextTick(() => this.$refs.close.focus());
    },
  },
  methods: {
    t,
    titleOf,
    number,
    setLanguage,
    setTheme,
    // --- called by the server ---
    rows(rows) {
      session.rows = rows;
      session.rowsKnown = true;
    },
    row(row) {
      const at = session.rows.findIndex((other) => other.id === row.id);
      if (at < 0) session.rows.push(row);
      else session.rows[at] = row;
      if (row.id === this.currentId) onScreen.value.title = row.title;
    },
    gone(id) {
      session.rows = session.rows.filter((row) => row.id !== id);
      forget(id);
      leaveDeleted(id);
    },
    // --- what the person does ---
    dot(row) {
      if (row.running) return "running";
      if (row.id === this.currentId) return null;
      return row.failed ? "failed" : row.unread ? "unread" : null;
    },
    closeDrawer() {
      if (!session.drawer) return;
      session.drawer = false;
      document.querySelector(".pg-menu").focus({ preventScroll: true });
    },
    fresh() {
      go(null);
      compose(null);
    },
    open(id) {
      go(id);
    },
    startRename(row) {
      this.renaming = { id: row.id, title: row.title };
      this.$nextTick(() => this.$refs.name?.[0]?.select());
    },
    confirmsWord(event) {
      if (event.isComposing || event.keyCode === 229) event.preventDefault();
    },
    async rename() {
      if (!this.renaming) return; // Escape, or Enter before the blur that follows it
      const { id, title } = this.renaming;
      this.renaming = null;
      const row = session.rows.find((other) => other.id === id);
      if (!row || !title.trim() || title.trim() === row.title) return;
      const before = row.title;
      row.title = title.trim();
      await this.attempt(() => api.renameConversation(id, title.trim()), () => (row.title = before));
    },
    askDelete(row) {
      this.deleting = row;
      this.$nextTick(() => this.$refs.dialog.showModal());
    },
    async remove() {
      const { id } = this.deleting;
      this.$refs.dialog.close();
      await this.attempt(async () => {
        await api.deleteConversation(id);
        this.gone(id);
      });
    },
    async attempt(request, undo) {
      try {
        await request();
      } catch (error) {
        undo?.();
        session.notice = error.message;
      }
    },
  },
};
