"""`python -m lake.cli`."""

import sys

from lake.cli import main

sys.exit(main())
