-- Gives running, queued, kept and bytes.
return {counter('running'), redis.call('ZCARD', T .. 'q'), redis.call('ZCARD', T .. 'x'), counter('bytes')}
