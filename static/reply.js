/**
 * One message of the model: its text, how far it is, how it ended, its versions, and what can be done with it.
 * The text never goes through Vue: a Prose object owns those elements. What comes and goes has wrappers of its own:
 * when a sibling of the text is removed, Chromium styles the whole of it again (0.5 s for 40,000 tokens).
 */
import * as api from "pagoda/api.js";
import { isTerminal } from "pagoda/attempt.js";
import { copy } from "pagoda/clipboard.js";
import { displayed } from "pagoda/conversation.js";
import { PgDetails } from "pagoda/details.js";
import { PgIcon } from "pagoda/icons.js";
import { PgLeave } from "pagoda/leave.js";
import { newId } from "pagoda/identity.js";
import { Prose, splitThinking } from "pagoda/prose.js";
import { session } from "pagoda/session.js";
import { PgStalled } from "pagoda/stalled.js";
import { describeOutcome, describeProgress, describeTimings } from "pagoda/status.js";
import { duration, language, t } from "pagoda/words.js";

const CAN_GO_ON = new Set(["length", "stopped_by_person", "engine_died", "restarted", "upstream_ended", "network"]);

export const PgReply = {
  components: { PgDetails, PgIcon, PgLeave, PgStalled },
  props: { message: Object, last: Boolean },
  template: `
    <article class="pg-reply" :aria-label="t('transcript.reply')" :aria-busy="running" :data-state="attempt?.state"
             :data-message="message.id" :data-attempt="attempt?.id">
      <div>
        <details v-show="thinking" class="pg-thinking">
          <summary>{{ thoughts }}</summary>
          <div ref="thinking" class="pg-prose"></div>
        </details>
        <div v-if="running && !attempt.text" class="pg-skeleton" aria-hidden="true"><i></i><i></i><i></i></div>
      </div>
      <div ref="answer" class="pg-prose pg-answer"></div>
      <div>
        <div v-if="running" class="pg-status">
          <div class="pg-status-words">
            <span class="pg-stage">{{ status.stage }}</span>
            <span v-for="detail in status.details" class="pg-detail">{{ detail }}</span>
          </div>
          <button v-if="attempt.progress?.stage === 'queued'" type="button" class="pg-button" @click="cancel">{{ t('action.withdraw') }}</button>
          <div class="pg-progress" :class="{idle: status.fraction === null}">
            <i :style="{transform: 'scaleX(' + (status.fraction ?? 0) + ')'}"></i>
          </div>
          <pg-leave :progress="attempt.progress" :elapsed="(now - attempt.startedAt) / 1000" />
          <pg-stalled v-if="session.connected && attempt.progress?.stage !== 'queued'" :attempt="attempt" :now="now"
                      @stop="cancel" @retry="afresh" />
        </div>
        <div v-else-if="outcome" class="pg-outcome" :data-reason="attempt.reason ?? attempt.state">
          <span>{{ outcome }}</span>
          <span class="pg-outcome-actions" v-if="last">
            <button v-if="canContinue" type="button" class="pg-button" @click="goOn" :disabled="asking">{{ t('action.continue') }}</button>
            <button type="button" class="pg-button" @click="again" :disabled="asking">
              {{ t(attempt.state === 'failed' ? 'action.retry' : 'action.regenerate') }}
            </button>
          </span>
        </div>
        <footer class="pg-reply-foot" v-if="attempt">
          <div class="pg-versions" v-if="message.attempts.length > 1" role="group" :aria-label="t('reply.versions')">
            <button type="button" class="pg-tool" :aria-label="t('reply.previous')" :disabled="position === 0"
                    @click="choose(position - 1)"><pg-icon name="previous" /></button>
            <span>{{ position + 1 }}/{{ message.attempts.length }}</span>
            <button type="button" class="pg-tool" :aria-label="t('reply.next')"
                    :disabled="position === message.attempts.length - 1" @click="choose(position + 1)"><pg-icon name="next" /></button>
          </div>
          <template v-if="!running">
            <button v-if="attempt.text" type="button" class="pg-tool" :aria-label="t('action.copy')" :title="t('action.copy')" @click="copyText">
              <pg-icon :name="copied ? 'done' : 'copy'" />
            </button>
            <button v-if="last && !outcome" type="button" class="pg-tool" :aria-label="t('action.regenerate')"
                    :title="t('action.regenerate')" :disabled="asking" @click="again"><pg-icon name="again" /></button>
            <div class="pg-timings" v-if="timings.length">{{ timings.join(' · ') }} <pg-details :key="attempt.id" :attempt="attempt" /></div>
          </template>
        </footer>
      </div>
    </article>`,
  data: () => ({ session, now: performance.now(), asking: false, copied: false, thinking: false, thinkingClosed: false }),
  computed: {
    attempt() {
      return displayed(this.message);
    },
    running() {
      return this.attempt !== null && !isTerminal(this.attempt.state);
    },
    position() {
      return this.message.attempts.indexOf(this.attempt);
    },
    status() {
      const elapsed = (this.now - this.attempt.startedAt) / 1000;
      return describeProgress(this.attempt.progress, elapsed, session.model?.state === "loading");
    },
    thoughts() {
      if (!this.thinkingClosed) return t("reply.thinking");
      const seconds = this.attempt.timings?.thinking_s ?? this.attempt.progress?.thinking_s;
      return seconds === undefined ? t("reply.thought") : t("reply.thought_for", { time: duration(seconds) });
    },
    outcome() {
      return this.attempt && describeOutcome(this.attempt);
    },
    timings() {
      return describeTimings(this.attempt.timings);
    },
    canContinue() {
      return this.attempt.text !== "" && (this.attempt.state === "failed" || CAN_GO_ON.has(this.attempt.reason));
    },
  },
  mounted() {
    this.answerProse = new Prose(this.$refs.answer);
    this.thinkingProse = new Prose(this.$refs.thinking);
    this.$watch(() => [this.attempt?.id, this.attempt?.text, this.running], this.write, { immediate: true, flush: "post" });
    this.$watch(() => language.code, () => [this.answerProse, this.thinkingProse].forEach((prose) => prose.refresh()));
    this.$watch(() => this.running, this.tick, { immediate: true });
  },
  beforeUnmount() {
    clearInterval(this.ticking);
  },
  methods: {
    t,
    write() {
      const { thinking, closed, answer } = splitThinking(this.attempt?.text ?? "");
      this.thinking = thinking !== null;
      this.thinkingClosed = closed;
      this.thinkingProse.write(thinking ?? "", closed);
      this.answerProse.write(answer, !this.running);
    },
    // Only the elapsed seconds tick here; everything else on the status line waits for an event of the engine.
    tick() {
      clearInterval(this.ticking);
      if (this.running) this.ticking = setInterval(() => (this.now = performance.now()), 500);
    },
    async ask(request) {
      if (this.asking) return; // a double click is one reply
      this.asking = true;
      session.notice = null;
      try {
        await request();
      } catch (error) {
        session.notice = error.message;
      } finally {
        this.asking = false;
      }
    },
    again() {
      return this.ask(() => api.regenerate(this.message.id, newId()));
    },
    goOn() {
      return this.ask(() => api.continueReply(this.message.id, newId()));
    },
    cancel() {
      return this.ask(() => api.stop(this.attempt.id));
    },
    /** Stop, and as soon as it has stopped, once more: two replies at a time would only share the silence. */
    async afresh() {
      await this.cancel();
      if (!this.running) return this.again();
      const unwatch = this.$watch("running", () => (unwatch(), this.again()));
    },
    choose(position) {
      const attempt = this.message.attempts[position];
      this.message.selected_attempt = attempt.id;
      return this.ask(() => api.selectAttempt(this.message.id, attempt.id));
    },
    async copyText() {
      this.copied = await copy(splitThinking(this.attempt.text).answer.trim());
      if (this.copied) setTimeout(() => (this.copied = false), 1500);
    },
  },
};
