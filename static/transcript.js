/**
 * The conversation on screen. The server drives it through the methods `show`, `earlier`, `merge`, `deltas`, `more`,
 * `missing`, `model` and `downloads` (ui/transcript.py); it tells the server which conversation is looked at by
 * `open`, and what was seen by `read`.
 */
import { agreeOnTime, heardBefore } from "pagoda/attempt.js";
import { PgBanner } from "pagoda/banner.js";
import { copy } from "pagoda/clipboard.js";
import { watchSocket } from "pagoda/connection.js";
import { absorb, absorbEarlier, absorbMessages, applyToConversation, displayed, forget, openAttempts } from "pagoda/conversation.js";
import { Follower } from "pagoda/follow.js";
import { PgIcon } from "pagoda/icons.js";
import { goToNote } from "pagoda/notes.js";
import { warmFormulas } from "pagoda/math.js";
import { unseenReplies } from "pagoda/notify.js";
import { restoreUnsent } from "pagoda/outbox.js";
import { keepPlace, placeIn } from "pagoda/places.js";
import { PgPicker } from "pagoda/picker.js";
import { PgPrompt } from "pagoda/prompt.js";
import { finishAll } from "pagoda/prose.js";
import { PgReply } from "pagoda/reply.js";
import { bringIntoView } from "pagoda/seeker.js";
import { happenings, leaveDeleted, onScreen, session } from "pagoda/session.js";
import { PgSettings } from "pagoda/settings.js";
import { PgUndo } from "pagoda/undo.js";
import { PgWelcome } from "pagoda/welcome.js";
import { language, number, t, titleOf } from "pagoda/words.js";

const NEAR_TOP = 900; // pixels above the view within which earlier messages are fetched

export default {
  components: { PgBanner, PgIcon, PgPicker, PgPrompt, PgReply, PgSettings, PgUndo, PgWelcome },
  template: `
    <main class="pg-transcript" :data-conversation="conversation.id ?? ''" :data-loaded="conversation.loaded">
      <header class="pg-top">
        <button type="button" class="pg-tool pg-menu" :aria-label="t('sidebar.open')" :aria-expanded="session.drawer"
                @click="session.drawer = true"><pg-icon name="menu" /></button>
        <h1 dir="auto">{{ titleOf(conversation.title) }}</h1>
        <pg-picker />
        <pg-settings />
      </header>
      <pg-banner />
      <div class="pg-scroll" ref="scroll" tabindex="-1">
        <div class="pg-column" ref="column" @click="clicked">
          <div v-if="conversation.missing" class="pg-missing">
            <p>{{ t('transcript.missing') }}</p>
            <button type="button" class="pg-button" @click="leaveDeleted(conversation.id)">{{ t('sidebar.new') }}</button>
          </div>
          <pg-welcome v-else-if="conversation.loaded && !conversation.messages.length" />
          <div v-else-if="!conversation.loaded && !conversation.messages.length" class="pg-skeleton" aria-hidden="true"><i></i><i></i><i></i></div>
          <button v-if="conversation.earlier.length" ref="earlier" type="button" class="pg-button quiet pg-earlier" @click="fetchEarlier">
            {{ t('transcript.earlier', {count: number(conversation.earlier.length)}) }}</button>
          <template v-for="(message, index) in conversation.messages" :key="message.key">
            <pg-prompt v-if="message.role === 'user'" :message="message" />
            <pg-reply v-else :message="message" :last="index === lastReply" />
          </template>
        </div>
      </div>
      <button v-show="!atBottom" type="button" class="pg-jump" @click="follower.toNewest(true)">
        <pg-icon name="down" />{{ t('transcript.newest') }}
      </button>
      <pg-undo />
      <div class="pg-unseen" aria-live="polite" role="status">{{ announcement && t(announcement) }}</div>
    </main>`,
  data: () => ({ session, atBottom: true, announcement: "", awaited: 0, fetching: false }),
  computed: {
    conversation: () => onScreen.value,
    lastReply() {
      return this.conversation.messages.findLastIndex((message) => message.role === "assistant");
    },
  },
  mounted() {
    document.getElementById("pg-shell")?.remove();
    this.$el.parentElement.closest("main")?.setAttribute("role", "none"); // NiceGUI's own; a page has one
    this.follower = new Follower(this.$refs.scroll, this.$refs.column, this.scrolled);
    happenings.addEventListener("leave", this.leave);
    happenings.addEventListener("open", this.opened);
    happenings.addEventListener("seek", this.seek);
    this.$watch(() => this.conversation.messages.at(-1)?.key, this.grew);
    this.$watch(() => [this.conversation.title, unseenReplies(), language.code], this.retitle, { immediate: true });
    addEventListener("pagehide", this.leave);
    document.addEventListener("visibilitychange", this.seen);
    this.watchConnection();
    this.load();
    (window.requestIdleCallback ?? setTimeout)(warmFormulas);
  },
  beforeUnmount() {
    this.follower.stop();
  },
  methods: {
    t,
    titleOf,
    leaveDeleted,
    number,
    // --- called by the server ---
    show(snapshot, generation) {
      if (generation !== session.generation || snapshot.id !== this.conversation.id) return; // the person has moved on
      this.awaited = 0;
      agreeOnTime(snapshot.now);
      const first = !this.conversation.loaded;
      absorb(this.conversation, snapshot);
      for (const attempt of openAttempts(this.conversation)) heardBefore(attempt, snapshot.silences?.[attempt.id] ?? 0);
      restoreUnsent(this.conversation);
      this.$nextTick(this.seek);
      if (first) this.$nextTick(this.return);
    },
    earlier(id, messages, ids) {
      this.fetching = false;
      if (id !== this.conversation.id || !this.conversation.loaded || !messages.length) return;
      const place = this.follower.place();
      absorbEarlier(this.conversation, messages, ids);
      this.$nextTick(() => (this.returning ? this.return() : place && this.follower.restore(place)));
      this.$nextTick(this.seek);
    },
    missing(id, generation) {
      if (generation !== session.generation || id !== this.conversation.id) return;
      this.awaited = 0;
      Object.assign(this.conversation, { missing: true, loaded: true, messages: [] });
      forget(id);
    },
    merge(id, messages, now) {
      agreeOnTime(now);
      if (id === this.conversation.id && this.conversation.loaded) absorbMessages(this.conversation, messages);
    },
    more(first, last, offset, text) {
      if (this.streamed) this.deltas([{ ...this.streamed, first, last, offset, text, progress: null, state: null }]);
    },
    deltas(batch) {
      const { conversation_id, message_id, attempt_id } = batch.at(-1);
      this.streamed = { conversation_id, message_id, attempt_id };
      for (const delta of batch) {
        if (delta.conversation_id !== this.conversation.id || !this.conversation.loaded) continue;
        const outcome = applyToConversation(this.conversation, delta);
        if (outcome === "gap" && !this.awaited) this.load();
        if (outcome === "applied" && delta.state) this.announce(delta);
      }
    },
    model(status) {
      session.model = status;
    },
    downloads(rows) {
      session.downloads = rows;
    },
    // --- what the person does ---
    leave() {
      if (this.conversation.loaded && !this.returning) keepPlace(this.conversation.id, this.follower.place());
    },
    /** Back to where the person was reading, fetching what lies between if need be. */
    return() {
      const place = placeIn(this.conversation.id);
      if (place) finishAll();
      this.returning = !this.follower.restore(place);
      if (!this.returning) return;
      if (this.conversation.earlier.includes(place.message)) return this.fetchEarlier();
      this.returning = false;
      this.follower.toNewest();
    },
    scrolled(atBottom) {
      this.atBottom = atBottom;
      clearTimeout(this.keeping);
      this.keeping = setTimeout(this.leave, 200);
      if (this.$refs.scroll.scrollTop < NEAR_TOP && !this.follower.following) this.fetchEarlier();
    },
    fetchEarlier() {
      if (this.fetching || !this.conversation.loaded || !this.conversation.earlier.length) return;
      this.fetching = true;
      this.$emit("earlier", { id: this.conversation.id, before: this.conversation.messages[0].id });
    },
    opened() {
      this.announcement = "";
      this.load();
      this.fetching = false;
      if (this.conversation.loaded) this.$nextTick(this.return);
    },
    seek() {
      this.$nextTick(() => bringIntoView(this.conversation, this.$refs.column, this.follower, this.fetchEarlier));
    },
    load() {
      session.generation += 1;
      this.streamed = null; // what is still on its way belongs to what was there before
      this.awaited = session.generation;
      this.$emit("open", { id: this.conversation.id, generation: session.generation });
      if (this.conversation.id === null) restoreUnsent(this.conversation);
    },
    grew() {
      const newest = this.conversation.messages.at(-1);
      if (newest?.role === "user" && newest.id === null) this.$nextTick(() => this.follower.toNewest());
    },
    retitle() {
      const title = this.conversation.title ? `${titleOf(this.conversation.title)} · Pagoda` : "Pagoda";
      document.title = unseenReplies() ? `(${unseenReplies()}) ${title}` : title;
    },
    announce(delta) {
      const { state } = delta.state;
      const message = this.conversation.messages.find((other) => other.id === delta.message_id);
      if (displayed(message)?.id !== delta.attempt_id) return;
      if (state !== "sending") this.announcement = `announce.${state}`;
      if (state !== "streaming") this.seen();
    },
    seen() {
      const id = this.conversation.id;
      if (id !== null && !document.hidden) this.$emit("read", { id });
    },
    async clicked(event) {
      if (event.target.closest(".pg-note")) return goToNote(event.target.closest(".pg-note"));
      const button = event.target.closest(".pg-copy-code");
      if (!button) return;
      const code = button.closest(".pg-code").querySelector("code").textContent;
      button.textContent = t((await copy(code)) ? "action.copied" : "action.copy_failed");
      setTimeout(() => (button.textContent = t("action.copy")), 1500);
    },
    watchConnection() {
      // NiceGUI makes its socket when the whole page is mounted, which is after this component.
      queueMicrotask(() => watchSocket(window.socket));
    },
  },
};
