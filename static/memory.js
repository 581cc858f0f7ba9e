/** How much memory models may use, and what that buys the one that is chosen. Applying it loads the model again. */
import * as api from "pagoda/api.js";
import { budgetOf, describeForecast } from "pagoda/forecast.js";
import { session } from "pagoda/session.js";
import { bytes, t } from "pagoda/words.js";

const STEPS = 200; // of the slider

export const PgMemory = {
  props: { memory: Object, name: String, forecast: Object },
  emits: ["changed"],
  template: `
    <form class="pg-memory" @submit.prevent="apply">
      <h3 id="pg-memory-title">{{ t('memory.title') }}</h3>
      <template v-if="range">
        <div class="pg-memory-line">
          <input type="range" min="0" :max="steps" step="1" :value="position" aria-labelledby="pg-memory-title"
                 :aria-valuetext="bytes(budget)" aria-describedby="pg-memory-buys" @input="slide">
          <output>{{ t('memory.of', {budget: bytes(budget), all: bytes(memory.physical_bytes)}) }}</output>
        </div>
        <p id="pg-memory-buys" aria-live="polite">{{ t('memory.buys', {name, what: describeForecast(forecast, budget)}) }}</p>
      </template>
      <p v-else>{{ t('memory.now', {budget: bytes(budget)}) }}</p>
      <div class="pg-memory-actions">
        <label><input type="checkbox" :checked="wish === null" @change="automatic">{{ t('memory.auto', {budget: bytes(memory.auto_bytes)}) }}</label>
        <button class="pg-button accent" :disabled="wish === memory.chosen_bytes || saving">{{ t('memory.apply') }}</button>
      </div>
      <p v-if="error ?? failure" class="pg-settings-error" role="alert">{{ error ?? failure }}</p>
      <p v-else role="status">{{ t(memory.waits ? 'memory.waits' : 'memory.note') }}</p>
    </form>`,
  data() {
    return { steps: STEPS, wish: this.memory.chosen_bytes, error: null, saving: false };
  },
  computed: {
    /** From what the model needs at least to what holds all of it, as far as this machine has it. */
    range() {
      if (!this.forecast?.steps) return null;
      const least = this.forecast.least_bytes;
      const most = Math.min(Math.max(this.forecast.whole_bytes, least + 1), this.memory.physical_bytes);
      return most > least ? { least, most } : null;
    },
    failure: () => (session.model?.state === "failed" ? session.model.detail : null),
    budget() {
      return this.wish ?? this.memory.auto_bytes;
    },
    position() {
      const { least, most } = this.range;
      return Math.round((STEPS * Math.min(Math.max(this.budget - least, 0), most - least)) / (most - least));
    },
  },
  watch: {
    "memory.chosen_bytes"(chosen) {
      this.wish = chosen;
    },
  },
  methods: {
    t,
    bytes,
    describeForecast,
    slide(event) {
      const { least, most } = this.range;
      this.wish = Math.ceil(least + ((most - least) * Number(event.target.value)) / STEPS);
    },
    automatic(event) {
      this.wish = event.target.checked ? null : (this.memory.chosen_bytes ?? Math.min(budgetOf(this.memory), this.range?.most ?? Infinity));
    },
    async apply() {
      this.saving = true;
      this.error = null;
      try {
        this.$emit("changed", await api.setMemory(this.wish));
      } catch (error) {
        this.error = error.message;
      }
      this.saving = false;
    },
  },
};
