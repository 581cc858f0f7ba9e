/**
 * The conversation on screen. The server drives it through the methods `show`, `merge`, `deltas`, `missing` and
 * `model` (ui/transcript.py); it tells the server which conversation is looked at by `open`, and what was seen by `read`.
 */
import { agreeOnTime } from "pagoda/attempt.js";
import { PgBanner } from "pagoda/banner.js";
import { copy } from "pagoda/clipboard.js";
import { absorb, absorbMessages, applyToConversation, displayed, forget } from "pagoda/conversation.js";
import { Follower } from "pagoda/follow.js";
import { PgIcon } from "pagoda/icons.js";
import { restoreUnsent } from "pagoda/outbox.js";
import { PgPrompt } from "pagoda/prompt.js";
import { PgReply } from "pagoda/reply.js";
import { bringIntoView } from "pagoda/seeker.js";
import { happenings, onScreen, session } from "pagoda/session.js";
import { PgSettings } from "pagoda/settings.js";
import { PgUndo } from "pagoda/undo.js";
import { PgWelcome } from "pagoda/welcome.js";
import { t, titleOf } from "pagoda/words.js";

const positions = new Map(); // conversation id -> pixels from the top, or null for the newest line

export default {
  components: { PgBanner, PgIcon, PgPrompt, PgReply, PgSettings, PgUndo, PgWelcome },
  template: `
    <main class="pg-transcript" :data-conversation="conversation.id ?? ''" :data-loaded="conversation.loaded">
      <header class="pg-top">
        <button type="button" class="pg-tool pg-menu" :aria-label="t('sidebar.open')" :aria-expanded="session.drawer"
                @click="session.drawer = true"><pg-icon name="menu" /></button>
        <h1 dir="auto">{{ titleOf(conversation.title) }}</h1>
        <pg-settings />
      </header>
      <pg-banner />
      <div class="pg-scroll" ref="scroll" tabindex="-1">
        <div class="pg-column" ref="column" @click="copyCode">
          <p v-if="conversation.missing" class="pg-missing">{{ t('transcript.missing') }}</p>
          <pg-welcome v-else-if="conversation.loaded && !conversation.messages.length" />
          <div v-else-if="!conversation.loaded && !conversation.messages.length" class="pg-skeleton" aria-hidden="true"><i></i><i></i><i></i></div>
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
      <div class="pg-unseen" aria-live="polite" role="status">{{ announcement }}</div>
    </main>`,
  data: () => ({ session, atBottom: true, announcement: "", awaited: 0 }),
  computed: {
    conversation: () => onScreen.value,
    lastReply() {
      return this.conversation.messages.findLastIndex((message) => message.role === "assistant");
    },
  },
  mounted() {
    this.follower = new Follower(this.$refs.scroll, this.$refs.column, (atBottom) => (this.atBottom = atBottom));
    happenings.addEventListener("leave", this.leave);
    happenings.addEventListener("open", this.opened);
    happenings.addEventListener("seek", this.seek);
    this.$watch(() => this.conversation.messages.at(-1)?.key, this.grew);
    this.$watch(() => this.conversation.title, this.retitle, { immediate: true });
    document.addEventListener("visibilitychange", this.seen);
    this.watchConnection();
    this.load();
  },
  beforeUnmount() {
    this.follower.stop();
  },
  methods: {
    t,
    titleOf,
    // --- called by the server ---
    show(snapshot, generation) {
      if (generation !== session.generation || snapshot.id !== this.conversation.id) return; // the person has moved on
      this.awaited = 0;
      agreeOnTime(snapshot.now);
      const first = !this.conversation.loaded;
      absorb(this.conversation, snapshot);
      restoreUnsent(this.conversation);
      if (first) this.$nextTick(() => this.follower.restore(positions.get(snapshot.id) ?? null));
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
    deltas(batch) {
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
    // --- what the person does ---
    leave() {
      if (this.conversation.id !== null) positions.set(this.conversation.id, this.follower.position());
    },
    opened() {
      this.announcement = "";
      this.load();
      this.$nextTick(() => this.follower.restore(positions.get(this.conversation.id) ?? null));
    },
    seek() {
      this.$nextTick(() => bringIntoView(this.conversation, this.$refs.column, this.follower));
    },
    load() {
      session.generation += 1;
      this.awaited = session.generation;
      this.$emit("open", { id: this.conversation.id, generation: session.generation });
      if (this.conversation.id === null) restoreUnsent(this.conversation);
    },
    grew() {
      const newest = this.conversation.messages.at(-1);
      if (newest?.role === "user" && newest.id === null) this.$nextTick(() => this.follower.toNewest());
    },
    retitle() {
      document.title = this.conversation.title ? `${titleOf(this.conversation.title)} · Pagoda` : "Pagoda";
    },
    announce(delta) {
      const { state } = delta.state;
      const message = this.conversation.messages.find((other) => other.id === delta.message_id);
      if (displayed(message)?.id !== delta.attempt_id) return;
      if (state !== "sending") this.announcement = t(`announce.${state}`);
      if (state !== "streaming") this.seen();
    },
    seen() {
      const id = this.conversation.id;
      if (id !== null && !document.hidden) this.$emit("read", { id });
    },
    async copyCode(event) {
      const button = event.target.closest(".pg-copy-code");
      if (!button) return;
      const code = button.closest(".pg-code").querySelector("code").textContent;
      button.textContent = t((await copy(code)) ? "action.copied" : "action.copy_failed");
      setTimeout(() => (button.textContent = t("action.copy")), 1500);
    },
    watchConnection() {
      // NiceGUI makes its socket when the whole page is mounted, which is after this component.
      queueMicrotask(() => {
        window.socket?.on("connect", () => (session.connected = true));
        window.socket?.on("disconnect", () => (session.connected = false));
      });
    },
  },
};
