"""Pre-registration: what a run is to show, filed before it is made and judged afterwards."""

FOLDER = "manifests/preregistered"
"""Where registrations lie in a source tree."""
RESULTS = "results"
"""Where their runs are looked for."""
