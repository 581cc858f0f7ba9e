/**
 * The list of conversations. The server drives it through `rows`, `row` and `gone` (ui/sidebar.py). A row says by its
 * dot what goes on in it: a reply is running, there is something unread, something failed.
 */
import * as api from "pagoda/api.js";
import { forget } from "pagoda/conversation.js";
import { PgIcon } from "pagoda/icons.js";
import { PgMenu } from "pagoda/menu.js";
import { PgSearch } from "pagoda/search.js";
import { compose, go, leaveDeleted, onScreen, session } from "pagoda/session.js";
import { PgShelf } from "pagoda/shelf.js";
import { choices, setTheme, theme } from "pagoda/theme.js";
import { offerUndo } from "pagoda/undo.js";
import { language, languages, number, setLanguage, t, titleOf } from "pagoda/words.js";

const DAY = 86_400;

export default {
  components: { PgIcon, PgMenu, PgSearch, PgShelf },
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
        <pg-search />
        <div v-show="!session.searching" class="pg-rows">
          <p v-if="session.rowsKnown && !session.rows.length" class="pg-none">{{ t('sidebar.none') }}</p>
          <component :is="group.folds ? 'details' : 'section'" v-for="group in groups" :key="group.name" :data-group="group.name">
            <component :is="group.folds ? 'summary' : 'h2'">{{ t('sidebar.' + group.name) }}
              <small v-if="group.folds">{{ number(group.rows.length) }}</small></component>
            <ul>
              <li v-for="row in group.rows" :key="row.id" class="pg-row" :class="{current: row.id === currentId, asked: row.id === asked?.id}"
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
                      <small v-if="row.queued">{{ t('sidebar.queued_short') }}</small>
                      <small v-else-if="row.running && row.percent !== null">{{ number(row.percent) }}%</small>
                    </span>
                  </a>
                  <span class="pg-row-tools">
                    <button type="button" class="pg-tool" :aria-label="t('sidebar.more', {title: titleOf(row.title)})"
                            aria-haspopup="menu" @click="ask(row, $event.currentTarget)"><pg-icon name="more" /></button>
                  </span>
                </template>
              </li>
            </ul>
          </component>
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
          <pg-shelf />
        </footer>
      </nav>
      <pg-menu ref="menu" :label="asked ? t('sidebar.more', {title: titleOf(asked.title)}) : ''" :items="actions" @pick="act" />
    </div>`,
  data: () => ({ session, theme, choices, language, languages, renaming: null, asked: null }),
  computed: {
    currentId: () => onScreen.value.id,
    groups() {
      const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
      const group = { pinned: [], today: [], yesterday: [], earlier: [], archived: [] };
      for (const row of [...session.rows].sort((one, other) => other.updated_at - one.updated_at)) {
        const when = row.updated_at >= midnight ? "today" : row.updated_at >= midnight - DAY ? "yesterday" : "earlier";
        group[row.archived ? "archived" : row.pinned ? "pinned" : when].push(row);
      }
      return Object.entries(group)
        .filter(([, rows]) => rows.length)
        .map(([name, rows]) => ({ name, rows, folds: name === "archived" }));
    },
    actions() {
      if (!this.asked) return [];
      const { id, pinned, archived } = this.asked;
      return [
        { name: "rename", icon: "pencil", words: t("action.rename") },
        ...(archived ? [] : [{ name: "pin", icon: "pin", words: t(pinned ? "action.unpin" : "action.pin") }]),
        { name: "archive", icon: archived ? "unbox" : "box", words: t(archived ? "action.unarchive" : "action.archive") },
        { name: "md", icon: "text", words: t("files.md"), href: `/api/conversations/${id}/export?format=md` },
        { name: "json", icon: "braces", words: t("files.json"), href: `/api/conversations/${id}/export?format=json` },
        { name: "delete", icon: "bin", words: t("action.delete"), danger: true },
      ];
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
      if (row.running) return row.queued ? "queued" : "running";
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
    ask(row, button) {
      this.asked = row;
      this.$nextTick(() => this.$refs.menu.open(button));
    },
    act(name) {
      const row = this.asked;
      if (name === "rename") this.startRename(row);
      if (name === "pin") this.change(row, { pinned: !row.pinned });
      if (name === "archive") this.change(row, { archived: !row.archived, pinned: false });
      if (name === "delete") this.remove(row);
    },
    change(row, changes) {
      return this.attempt(() => api.changeConversation(row.id, changes));
    },
    async remove({ id, title }) {
      const wasOnScreen = id === this.currentId;
      await this.attempt(async () => {
        await api.deleteConversation(id);
        this.gone(id);
        offerUndo("undo.conversation", { title: titleOf(title) }, async () => {
          await api.restoreConversation(id);
          if (wasOnScreen) go(id);
        });
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
