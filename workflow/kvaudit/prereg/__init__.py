"""Pre-registration: what a run is to show, filed before it is made and judged afterwards."""
