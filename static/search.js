/** The search field of the sidebar and what it finds. A hit opens its conversation at its message. */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { seek, session } from "pagoda/session.js";
import { t } from "pagoda/words.js";

const PAUSE_MS = 150; // between the last keystroke and the question

export const PgSearch = {
  components: { PgIcon },
  template: `
    <div class="pg-search" role="search">
      <pg-icon name="search" />
      <input ref="field" type="search" v-model="query" :placeholder="t('search.placeholder')" :aria-label="t('search.label')"
             maxlength="300" autocomplete="off" @input="typed" @keydown.esc="escape" @keydown.down.prevent="toHits">
    </div>
    <div v-if="session.searching" class="pg-hits" ref="hits" :aria-busy="asking" @keydown="walk">
      <p role="status">{{ summary }}</p>
      <ul>
        <li v-for="hit in hits" :key="hit.conversation_id + hit.message_id">
          <a :href="'/c/' + hit.conversation_id" @click.exact.prevent="open(hit)">
            <b dir="auto"><component :is="piece.hit ? 'mark' : 'span'" v-for="piece in hit.title">{{ piece.text }}</component></b>
            <span v-if="hit.excerpt.length" dir="auto">
              <small>{{ t(hit.role === 'user' ? 'transcript.you' : 'transcript.reply') }}</small>
              <component :is="piece.hit ? 'mark' : 'span'" v-for="piece in hit.excerpt">{{ piece.text }}</component></span>
          </a>
        </li>
      </ul>
    </div>`,
  data: () => ({ session, query: "", hits: [], asking: false, failed: null, asked: 0 }),
  computed: {
    summary() {
      if (this.failed) return this.failed;
      if (this.asking && !this.hits.length) return t("search.asking");
      return this.hits.length ? t("search.found", { count: this.hits.length }) : t("search.none");
    },
  },
  beforeUnmount() {
    clearTimeout(this.pause);
  },
  methods: {
    t,
    typed() {
      clearTimeout(this.pause);
      session.searching = this.query.trim() !== "";
      if (!session.searching) this.hits = [];
      else this.pause = setTimeout(this.ask, PAUSE_MS);
      this.asking = session.searching;
    },
    async ask() {
      const asked = (this.asked += 1);
      try {
        const { hits } = await api.search(this.query);
        if (asked !== this.asked) return; // a later question is on its way
        this.hits = hits;
        this.failed = null;
      } catch (error) {
        if (asked === this.asked) this.failed = error.message;
      }
      this.asking = false;
    },
    open(hit) {
      const words = hit.excerpt.filter((piece) => piece.hit).map((piece) => piece.text.toLowerCase());
      seek(hit.conversation_id, hit.message_id, [...new Set(words)]);
    },
    escape(event) {
      if (!this.query) return; // then it closes the drawer
      event.stopPropagation();
      this.query = "";
      this.typed();
    },
    toHits() {
      this.$refs.hits?.querySelector("a")?.focus();
    },
    walk(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Escape") this.$refs.field.focus();
      if (!step) return;
      event.preventDefault();
      const links = [...this.$refs.hits.querySelectorAll("a")];
      const next = links.indexOf(document.activeElement) + step;
      (next < 0 ? this.$refs.field : links[Math.min(next, links.length - 1)]).focus();
    },
  },
};
