"""Views of a run: the page `report.html`, and the live view of `cudal1-agent watch`."""
