"""What people look at after a run: one HTML file, the same for machines, and an index of runs.

`history -> attempts, bands, stories, measures -> Told -> page, JUnit XML, JSON`

    write(history, verdicts, directory)     # report.html, report.json, junit.xml
    write_index(Path("reports"))            # index.html, from each run's verdicts.json

Drawing takes Bokeh, which takes a second to import: only `page` and what it draws with imports it,
and `write` imports `page` when it is called. Equal histories give equal files, byte for byte, if
their directories have the same name.
"""

from chaos.report.index import write_index
from chaos.report.write import HTML, write

__all__ = ["HTML", "write", "write_index"]
