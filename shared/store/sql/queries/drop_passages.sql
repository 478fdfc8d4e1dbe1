-- Removes the passages of a document that is about to be replaced.
DELETE FROM passages WHERE document_id = %(document_id)s
