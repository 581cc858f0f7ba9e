/** What a reply that takes long says: that one may leave, and the offer to be told when it is done. */
import { canTell, telling, wantToBeTold } from "pagoda/notify.js";
import { t } from "pagoda/words.js";

const LONG = 60; // seconds still to wait by the measured rates,
const ALREADY = 30; // or seconds waited

export const PgLeave = {
  props: { progress: Object, elapsed: Number },
  template: `
    <div v-if="long" class="pg-leave">
      <span>{{ t(telling.wanted ? 'notify.will' : 'notify.long') }}</span>
      <button v-if="canTell()" type="button" class="pg-button quiet" @click="wantToBeTold(!telling.wanted)">
        {{ t(telling.wanted ? 'notify.rather_not' : 'notify.offer') }}</button>
    </div>`,
  data: () => ({ telling }),
  computed: {
    long() {
      return this.elapsed > ALREADY || (this.progress?.eta_high_s ?? 0) > LONG;
    },
  },
  methods: { t, canTell, wantToBeTold },
};
