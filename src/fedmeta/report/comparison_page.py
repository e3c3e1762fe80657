"""The page of a comparison of algorithms."""

from __future__ import annotations

from fedmeta.report import comparison_figures as figures
from fedmeta.report import format as fmt
from fedmeta.report.headline import comparison_headline, comparison_remarks
from fedmeta.report.pages import render
from fedmeta.report.picture import present
from fedmeta.report.reading import ComparisonFacts, PairedFacts, RowFacts
from fedmeta.report.run_page import federation_part, targets_part


def comparison_page(comparison: ComparisonFacts) -> str:
    """The HTML of a comparison."""
    runs = comparison.rows[0].runs
    first = runs[0] if runs else None  # one seed's nodes stand for all
    data = comparison.data.get("name") or (first.federation.name if first else "data")
    return render(
        "comparison.html",
        {
            "title": f"{fmt.counted(len(comparison.rows), 'algorithm')} on {data}",
            "comparison": comparison,
            "headline": comparison_headline(comparison),
            "remarks": comparison_remarks(comparison),
            "rows": [_row(row, comparison) for row in comparison.rows],
            "charts": present(figures.intervals(comparison), figures.learning_curves(comparison)),
            "paired": figures.paired_differences(comparison),
            "paired_rows": [_pair(pair, comparison) for pair in comparison.paired],
            "example": first,
            **(targets_part(first) if first else {"metric": comparison.metric}),
            **(federation_part(first.federation) if first else {}),
        },
    )


def _row(row: RowFacts, comparison: ComparisonFacts) -> dict[str, str]:
    metric = comparison.metric
    return {
        "label": row.label,
        "mean": fmt.estimate(row.mean, row.ci95, metric),
        "before": fmt.metric(row.before_mean, metric),
        "worst": fmt.metric(row.worst_decile, metric),
        "steps": fmt.number(row.adaptation_steps),
        "rounds": fmt.number(row.rounds),
        "gradients": fmt.number(row.gradient_evaluations),
        "bytes": fmt.size(row.bytes_per_node),
        "seconds": fmt.duration(row.seconds),
        "diverged": f"{row.diverged} of {len(comparison.seeds)}" if row.diverged else "none",
    }


def _pair(pair: PairedFacts, comparison: ComparisonFacts) -> dict[str, str]:
    metric, interval = comparison.metric, fmt.NO_VALUE
    if pair.mean is not None and pair.ci95 is not None:
        low, high = pair.mean - pair.ci95, pair.mean + pair.ci95
        interval = f"{fmt.change(low, metric)} to {fmt.change(high, metric)}"
    return {
        "against": pair.against,
        "mean": fmt.change(pair.mean, metric),
        "interval": interval.replace("\u00a0points to", " to"),
    }
