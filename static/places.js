/** Where the person was reading in each conversation; it survives a reload, so also a restart of Pagoda. */
const PLACE = "pagoda.place.";

/**
 * @typedef {{message: string, offset: number}} Place the message at the top of the view, and how far above the view's
 *   edge it begins
 * @param {string | null} id @param {Place | null} place null: at the newest line
 */
export function keepPlace(id, place) {
  if (id === null) return;
  if (place) sessionStorage.setItem(PLACE + id, JSON.stringify(place));
  else sessionStorage.removeItem(PLACE + id);
}

/** @returns {Place | null} */
export const placeIn = (id) => JSON.parse(sessionStorage.getItem(PLACE + id) ?? "null");
