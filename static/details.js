/**
 * Why a reply was as fast as it was: where its time went, and how it went from token to token. Everything here was
 * recorded while it was written; the plot is fetched when somebody looks.
 */
import * as api from "pagoda/api.js";
import { PgIcon } from "pagoda/icons.js";
import { session } from "pagoda/session.js";
import { bytes, duration, number, t } from "pagoda/words.js";

// The first popover of a page makes Chromium compute the style of every element again: 0.6 s, were it to come only
// when a reply of 40,000 tokens ends. This one comes while the page is empty.
document.body.append(Object.assign(document.createElement("i"), { popover: "manual" }));

const WIDTH = 300;
const HEIGHT = 56;

/** The steps of a plot: each token's share of the time and of the experts since the point before it. */
export function stepsOf(course) {
  const points = course.filter((point) => point.stage === "decode");
  const steps = [];
  for (let index = 1; index < points.length; index += 1) {
    const [before, point] = [points[index - 1], points[index]];
    const tokens = point.tokens_done - before.tokens_done;
    if (tokens <= 0) continue;
    steps.push({
      token: point.tokens_done,
      tokens,
      seconds: (point.elapsed_s - before.elapsed_s) / tokens,
      hits: Math.max(0, point.expert_hits - before.expert_hits) / tokens,
      reads: Math.max(0, point.expert_reads - before.expert_reads) / tokens,
    });
  }
  return steps;
}

export const PgDetails = {
  components: { PgIcon },
  props: { attempt: Object },
  template: `
    <button type="button" class="pg-why" :popovertarget="id">{{ t('details.open') }}</button>
    <div :id="id" popover class="pg-dialog pg-details" role="dialog" :aria-label="t('details.title')" @toggle="look">
      <header><h2>{{ t('details.title') }}</h2>
        <button type="button" class="pg-tool" :popovertarget="id" popovertargetaction="hide" :aria-label="t('details.close')">
          <pg-icon name="close" /></button>
      </header>
      <template v-if="steps?.length">
        <figure>
          <figcaption>{{ t('details.per_token') }} <small>{{ t('details.most', {most: duration(slowest)}) }}</small></figcaption>
          <svg :viewBox="box" preserveAspectRatio="none" role="img" :aria-label="t('details.per_token')" data-plot="seconds">
            <rect v-for="bar in bars" :x="bar.x" :width="bar.width" :y="bar.y" :height="bar.height" class="time" />
          </svg>
          <small>{{ t('details.tokens', {first: number(steps[0].token), last: number(steps.at(-1).token)}) }}</small>
        </figure>
        <figure v-if="mostExperts > 0">
          <figcaption>{{ t('details.experts') }} <small>{{ t('details.most', {most: number(mostExperts)}) }}</small></figcaption>
          <svg :viewBox="box" preserveAspectRatio="none" role="img" :aria-label="t('details.experts')" data-plot="experts">
            <template v-for="bar in bars">
              <rect :x="bar.x" :width="bar.width" :y="bar.readsY" :height="bar.reads" class="reads" />
              <rect :x="bar.x" :width="bar.width" :y="bar.hitsY" :height="bar.hits" class="hits" />
            </template>
          </svg>
          <small class="pg-key"><i class="hits"></i>{{ t('details.hits') }} <i class="reads"></i>{{ t('details.reads') }}</small>
        </figure>
      </template>
      <p v-else-if="steps">{{ t('details.no_course') }}</p>
      <dl>
        <template v-for="row in parts"><dt :class="{ part: row.part }">{{ row.name }}</dt><dd>{{ row.time }}</dd></template>
      </dl>
      <p v-if="advice" class="pg-advice">{{ advice }}</p>
      <dl v-if="larger.length" class="pg-larger">
        <template v-for="row in larger"><dt>{{ row.budget }}</dt><dd>{{ row.time }}</dd></template>
      </dl>
    </div>`,
  data: () => ({ steps: null, box: `0 0 ${WIDTH} ${HEIGHT}` }),
  computed: {
    id() {
      return `pg-details-${this.attempt.id}`;
    },
    slowest() {
      return Math.max(...this.steps.map((step) => step.seconds));
    },
    mostExperts() {
      return Math.max(...this.steps.map((step) => step.hits + step.reads));
    },
    bars() {
      const first = this.steps[0].token - this.steps[0].tokens;
      const scale = WIDTH / (this.steps.at(-1).token - first);
      return this.steps.map((step) => {
        const height = (HEIGHT * step.seconds) / this.slowest;
        const [hits, reads] = [step.hits, step.reads].map((count) => (HEIGHT * count) / (this.mostExperts || 1));
        const place = { x: (step.token - step.tokens - first) * scale, width: step.tokens * scale };
        return { ...place, y: HEIGHT - height, height, hits, reads, hitsY: HEIGHT - hits, readsY: HEIGHT - hits - reads };
      });
    },
    parts() {
      const timings = this.attempt.timings;
      const names = ["queued", "loading", "prefill", "decode"].filter((name) => timings[`${name}_s`] >= 0.005);
      const rows = names.map((name) => ({ name: t(`details.${name}`), time: duration(timings[`${name}_s`]) }));
      const { cached_tokens: known, prompt_tokens: total } = this.attempt.usage ?? {};
      if (known) {
        const counts = { known: number(known), total: number(total) };
        rows.unshift({ name: t("details.known"), time: t("details.known_tokens", counts) });
      }
      if (timings.disk_s === undefined) return rows;
      const part = (name, seconds) => rows.push({ name: t(`details.${name}`), time: duration(seconds), part: true });
      part("disk", timings.disk_s);
      if (timings.router_s >= 0.005) part("router", timings.router_s);
      const told = timings.disk_s + (timings.router_s ?? 0) + (timings.compute_s ?? 0);
      if (timings.compute_s !== undefined) part("compute", timings.compute_s);
      part(timings.compute_s === undefined ? "compute" : "rest", Math.max(0, this.work - told));
      return rows;
    },
    work() {
      return (this.attempt.timings.prefill_s ?? 0) + (this.attempt.timings.decode_s ?? 0);
    },
    advice() {
      const { disk_s: disk, tpot_s: tpot, expert_hits: hits, expert_reads: reads } = this.attempt.timings;
      if (disk === undefined || !(tpot > 0) || !(this.work > 0) || !(hits + reads > 0)) return null;
      const share = Math.min(1, disk / this.work);
      if (share < 0.01) return t("details.no_disk");
      const buys = t("details.buys", { time: duration(tpot * (1 - share)), now: duration(tpot) });
      return this.whole && !this.larger.length ? `${buys} ${this.whole}` : buys;
    },
    /** What more memory would have bought, as the engine reckoned from how often each expert was wanted. */
    larger() {
      return (this.attempt.timings.larger ?? []).map(([budget, rate]) => ({
        budget: t("details.with", { budget: bytes(budget) }),
        time: t("details.about", { time: duration(1 / rate) }),
      }));
    },
    /** How much memory would hold all experts, as the engine counts it now; empty where it has another model in it. */
    whole() {
      const { name, loaded } = session.model ?? {};
      if (!loaded?.paged || name !== this.attempt.model) return "";
      const whole = loaded.budget_bytes + loaded.expert_bytes - loaded.slot_bytes;
      return t("details.whole", { whole: bytes(whole), now: bytes(loaded.budget_bytes) });
    },
  },
  methods: {
    t,
    duration,
    number,
    async look(event) {
      if (event.newState !== "open" || this.steps) return;
      this.steps = stepsOf(await api.courseOf(this.attempt.id).catch(() => []));
    },
  },
};
