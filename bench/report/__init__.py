"""Figures, pages and notebooks of runs."""

import logging

# Its notices (it cannot write into its own folder, or is listing the fonts, which it says after 5 s) mean nothing to our users.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
