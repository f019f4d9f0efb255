"""From a ledger or receipts to the values of `node.reports.model`. Nothing here writes.

- `audits`: audits, from a ledger
- `fetch_routes`: by which ways versions were fetched, from events
- `ledger_history`: figures over the run, from a ledger
- `ledger_report`: the learner's report
- `reach`: how peers are reached, and how they met
- `receipts_report`: a volunteer's report
"""
