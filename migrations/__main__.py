"""Write the next migration from what the tables have more than the schema so far: `python -m migrations NAME`."""

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from lake.catalog.engine import create_engine, parse_url, writer

_USAGE = 'usage: python -m migrations "verb noun"'


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].strip():
        sys.exit(_USAGE)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    head = ScriptDirectory.from_config(config).get_current_head()
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(parse_url(str(Path(folder) / "catalog.db")))
        with writer(engine).begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            command.revision(config, sys.argv[1], autogenerate=True, rev_id=f"{int(head or 0) + 1:04}")
        engine.dispose()


if __name__ == "__main__":
    main()
