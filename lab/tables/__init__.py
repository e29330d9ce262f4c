"""The paper's tables beside ours, and what else the pages of results print: computed from committed rows."""
