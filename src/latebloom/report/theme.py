"""Colours and fonts of the charts in the light and the dark theme."""

from typing import Any

COLORS = (
    "#d1495b", "#00798c", "#edae49", "#66a182", "#2e4057", "#8d6a9f", "#3b7dd8", "#a8581c", "#c2569b", "#7d8c1f",
)  # fmt: skip
ON_DARK = (
    "#f0808e", "#48b5c7", "#edae49", "#8fcf9f", "#a9bedb", "#c9a6da", "#7db0ff", "#d9975f", "#ea94c8", "#bfcf63",
)  # fmt: skip
"""The same hues for the dark theme."""


def chart_config(dark: bool = False) -> dict[str, Any]:
    """Return Vega's configuration with the colours of page.css."""
    ink, soft, line = ("#e6e9ec", "#a7b1ba", "#3a424a") if dark else ("#1d2733", "#55616c", "#c9d0d6")
    return {
        "background": "#14181c" if dark else "#ffffff",
        "view": {"strokeWidth": 0},
        "style": {"guide": {"color": soft, "strokeOpacity": 0.7}, "remark": {"color": soft, "fontSize": 11}},
        "range": {
            "category": list(ON_DARK if dark else COLORS),
            "ordinal": ["#97a9b8", "#f3f5f7"] if dark else ["#8896a3", "#12202e"],
        },
        "axis": {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelColor": soft,
            "titleColor": soft,
            "domainColor": line,
            "tickColor": line,
            "gridColor": line,
            "gridOpacity": 0.5,
        },
        "legend": {"labelFontSize": 13, "labelColor": ink},
        "title": {"color": ink, "fontSize": 14, "fontWeight": 600, "anchor": "start"},
    }
