"""What was found while looking for a learning rate, as SVG: loss over rate, of the sweep and of the short trainings."""

from __future__ import annotations

from math import ceil, floor, isfinite, log10

from tapeless.train.find_rate import RateFound

WIDTH, HEIGHT, MARGIN = 720, 400, 56
SWEEP, SHORT, LONG = "#999", "#07c", "#0a7"


def picture(found: RateFound) -> str:
    rates = [each.rate for each in found.sweep] + [each.rate for each in found.tries]
    losses = [each.smooth for each in found.sweep] + [each.loss for each in found.tries if isfinite(each.loss)]
    low, high = floor(log10(min(rates))), ceil(log10(max(rates)))
    top = 1.15 * max(found.before, found.sweep[0].loss)  # what is higher has left, and how far does not matter
    bottom = 0.95 * min(losses)

    def place(rate: float, loss: float) -> tuple[float, float]:
        across, up = (log10(rate) - low) / (high - low), (min(loss, top) - bottom) / (top - bottom)
        return MARGIN + (WIDTH - 2 * MARGIN) * across, HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * up

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(each.rate, each.smooth) for each in found.sweep))
    at, lowest = place(found.rate, bottom)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}" fill="none" '
        'stroke="#ccc"/>',
        f'<polyline points="{line}" fill="none" stroke="{SWEEP}" stroke-width="1.5"/>',
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{MARGIN}" y2="{lowest:.1f}" stroke="{LONG}" stroke-dasharray="4 4"/>',
    ]
    longest = max(each.updates for each in found.tries)
    for each in found.tries:
        x, y = place(each.rate, each.loss)
        colour = LONG if each.updates == longest else SHORT
        if isfinite(each.loss):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        else:
            parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="{colour}">×</text>')
    for power in range(low, high + 1):
        x = place(10.0**power, bottom)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">1e{power}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        loss = bottom + (top - bottom) * share
        y = place(10.0**low, loss)[1]
        parts.append(f'<text x="{MARGIN - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>')
    shortest = min(each.updates for each in found.tries)
    legend = [(SWEEP, "sweep, training loss"), (SHORT, f"{shortest} updates, held out")]
    legend += [(LONG, f"{longest} updates, held out")] if longest != shortest else []
    for number, (colour, words) in enumerate(legend):
        x = MARGIN + 180 * number
        parts.append(f'<circle cx="{x + 5}" cy="{HEIGHT - 10}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{HEIGHT - 6}">{words}</text>')
    title = f"suggested learning rate {found.rate:.1e}"
    parts.append(f'<text x="{MARGIN}" y="{MARGIN - 14}" font-weight="bold" font-size="14">{title}</text>')
    parts.append(f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 6}" text-anchor="end">learning rate</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
