"""Read a ledger or receipts into the values of `node.reports.model`. Nothing here writes.

- `audits`: audits, from a ledger
- `fetch_routes`: in which ways versions were fetched, from events
- `ledger_history`: numbers over the course of the run, from a ledger
- `ledger_report`: the learner's report
- `reach`: how peers are reached, and how they connected
- `place_report`: either of the two, from a state directory
- `receipts_report`: a volunteer's report
"""
