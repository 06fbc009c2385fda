"""What was found while looking for a learning rate, as SVG: loss over rate, of the sweep and of the short trainings."""

from __future__ import annotations

from math import ceil, floor, isfinite, log10

from tapeless.pictures import svg
from tapeless.pictures.svg import OTHER, OURS, QUIET, Panel, legend, text
from tapeless.train.find_rate import RateFound, Tried


def picture(found: RateFound) -> str:
    rates = [each.rate for each in found.sweep] + [each.rate for each in found.tries]
    losses = [each.smooth for each in found.sweep] + [each.loss for each in found.tries if isfinite(each.loss)]
    low, high = floor(log10(min(rates))), ceil(log10(max(rates)))
    top = 1.15 * max(found.before, found.sweep[0].loss)  # what is higher has left, and how far does not matter
    bottom = 0.95 * min(losses)
    title = f"suggested learning rate {found.rate:.1e}"
    panel = Panel(title, 56, 56, 608, 270, (10.0**low, 10.0**high), (bottom, top), log_x=True)
    powers = [(10.0**power, f"1e{power}") for power in range(low, high + 1)]
    heights = [bottom + (top - bottom) * part / 4 for part in range(5)]
    parts = panel.named_frame(powers, [(loss, f"{loss:.3g}") for loss in heights], "learning rate")
    parts += panel.line([(each.rate, min(each.smooth, top)) for each in found.sweep], QUIET, dots=False)
    parts += panel.line([(found.rate, bottom), (found.rate, top)], OURS, dash="4 4", dots=False)
    shortest, longest = (ends(each.updates for each in found.tries) for ends in (min, max))
    parts += [_tried(panel, each, OURS if each.updates == longest else OTHER) for each in found.tries]
    names = [("sweep, training loss", QUIET), (f"{shortest} updates, held out", OTHER)]
    names += [(f"{longest} updates, held out", OURS)] if longest != shortest else []
    return svg.picture(720, 400, [*parts, *legend(56, 385, names, apart=180)])


def _tried(panel: Panel, tried: Tried, colour: str) -> str:
    """A dot; a cross at the top if the loss was not finite."""
    if isfinite(tried.loss):
        return panel.dot((tried.rate, min(tried.loss, panel.y[1])), colour, 4)
    x, y = panel.place(tried.rate, panel.y[1])
    return text(x, y + 4, "×", "middle", colour)
