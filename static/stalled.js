/** What a running reply says when its source has been silent for too long, and what the person may do about it. */
import { choices, patienceWith, setPatience } from "pagoda/patience.js";
import { clock, t } from "pagoda/words.js";

export const PgStalled = {
  props: { attempt: Object, now: Number },
  emits: ["stop", "retry"],
  template: `
    <div v-if="stalled" class="pg-stalled" role="status">
      <span class="pg-stalled-words">{{ t('stalled.silent', {time: clock(silence)}) }}</span>
      <span class="pg-outcome-actions">
        <button type="button" class="pg-button" @click="keepWaiting">{{ t('stalled.keep') }}</button>
        <button type="button" class="pg-button" @click="$emit('stop')">{{ t('action.stop') }}</button>
        <button type="button" class="pg-button" @click="$emit('retry')">{{ t('action.retry') }}</button>
      </span>
      <label>{{ t('stalled.patience') }}
        <select :value="String(patience)" @change="choose">
          <option v-for="choice in choices" :value="String(choice)">{{ choice === null ? t('stalled.never') : clock(choice) }}</option>
        </select>
      </label>
    </div>`,
  data: () => ({ choices, patient: 0 }), // patient: until when the person wants to hear nothing of it
  computed: {
    patience() {
      return patienceWith(this.attempt.model);
    },
    silence() {
      return (this.now - this.attempt.heardAt) / 1000;
    },
    stalled() {
      return this.patience !== null && this.silence >= this.patience && this.now >= this.patient;
    },
  },
  methods: {
    t,
    clock,
    keepWaiting() {
      this.patient = performance.now() + this.patience * 1000;
    },
    choose(event) {
      setPatience(this.attempt.model, event.target.value === "null" ? null : Number(event.target.value));
    },
  },
};
